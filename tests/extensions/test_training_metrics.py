"""Metrics of the samples that a run trains on, and norms of gradients by pattern, beside NumPy on the same samples."""

import json
import math

import numpy as np
import pytest
from command import run_trainer, write_config
from jobs import config, launch_rounds, write_rows
from sklearn.metrics import log_loss, roc_auc_score

from trainer.config.root import Config
from trainer.extensions.training_metrics import measured
from trainer.metrics.registry import metrics_of

METRICS = ["auc", "normalized_entropy", "calibration"]
STEPS, EVERY, BATCH = 12, 2, 64
WINDOW = 4  # steps of 150 samples, rounded up to whole report intervals


def lines(out):
    return {line["step"]: line for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines())}


def tree_of(data, out, **report):
    tree = config(data, train__steps=STEPS, checkpoint={"every_steps": 2}, report={"tensorboard": False} | report)
    tree["report"] |= {"interval_steps": EVERY, "watchers": {"own_watchers:Outputs": {"folder": str(out)}}}
    return tree


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs without and with metrics on one and two ranks; on one, another with microbatches and clipped gradients."""
    folder = tmp_path_factory.mktemp("metrics")
    data = write_rows(folder / "data", [300, 200])
    with_metrics = {"training_metrics": METRICS, "window_samples": 150, "gradient_norms": ["over*", "*"]}
    rounds = []
    for ranks in (1, 2):
        named = {"plain": {}, "metrics": with_metrics}
        jobs = [(tree_of(data, folder / f"{name}-{ranks}", **report), name) for name, report in named.items()]
        if ranks == 1:
            sliced = tree_of(data, folder / "sliced-1", **with_metrics)
            sliced["train"]["micro_batches"] = 2
            sliced["optimizer"]["dense"]["max_norm"] = 1e9
            jobs.append((sliced, "sliced"))
        rounds.append((ranks, [{"config": tree, "out": str(folder / f"{name}-{ranks}")} for tree, name in jobs]))
    launch_rounds(rounds, folder)
    return folder


def samples(out, steps):
    """Returns logits and labels of all ranks' samples of some steps, as the watcher wrote them."""
    found = [json.loads(file.read_text()) for step in steps for file in sorted(out.glob(f"outputs-{step}-*.json"))]
    names = ("logits", "labels", "weights")
    logits, labels, weights = (np.concatenate([np.array(one[name], np.float64) for one in found]) for name in names)
    return logits[weights > 0], labels[weights > 0]  # the last step of an epoch is padded


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"tasks": {"seconds": {"loss": "squared"}}}, {"seconds": ["rmse", "xauc"]}),
        (
            {"tasks": {"seconds": {"loss": "poisson", "group": "user"}}},
            {"seconds": ["rmse", "calibration", "xauc", "mrr"]},
        ),
        ({"tasks": {"seconds": {"loss": "softmax"}}}, {"seconds": ["auc"]}),
        ({"model": {"loss": "squared"}}, {"click": ["rmse", "xauc"], "seconds": ["rmse", "xauc"]}),
        (
            {"tasks": {"click": {}, "long": {"label": "seconds", "loss": "absolute"}}},
            {"click": ["auc", "calibration"], "long": ["rmse", "xauc"]},
        ),
    ],
)
def test_each_task_has_the_metrics_that_suit_what_its_loss_takes(tree, expected):
    data = {"labels": ["click", "seconds"], "numeric_labels": ["seconds"], "groups": ["user"]}
    report = {"training_metrics": ["auc", "rmse", "calibration", "xauc", "mrr"]}
    model = {"name": "own:model"} | tree.pop("model", {})
    found = measured(Config.model_validate({"model": model, "data": data, "report": report, **tree}))
    assert {task: metrics_of(task, found)[1] for task in found.named_tasks()} == expected


@pytest.mark.parametrize("run", ["metrics-1", "metrics-2", "sliced-1"])
def test_metrics_of_each_window_are_those_of_its_samples(runs, run):
    found = lines(runs / run)
    for step in range(EVERY, STEPS + 1, EVERY):
        if step % WINDOW:
            assert "auc" not in found[step]
            continue
        logits, labels = samples(runs / run, range(step - WINDOW + 1, step + 1))
        predicted, rate = 1 / (1 + np.exp(-logits)), labels.mean()
        entropy = -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
        assert found[step]["window_samples"] == len(labels) > (WINDOW - 1) * BATCH
        assert found[step]["auc"] == pytest.approx(roc_auc_score(labels, logits), rel=1e-12)
        assert found[step]["normalized_entropy"] == pytest.approx(log_loss(labels, predicted) / entropy, rel=1e-9)
        assert found[step]["calibration"] == pytest.approx(predicted.sum() / labels.sum(), rel=1e-9)


def test_they_change_no_loss_and_are_the_same_on_two_ranks(runs):
    for ranks in (1, 2):
        plain, measured = (lines(runs / f"{name}-{ranks}") for name in ("plain", "metrics"))
        assert [line["loss"] for line in plain.values()] == [line["loss"] for line in measured.values()]
    one, two = lines(runs / "metrics-1"), lines(runs / "metrics-2")
    for step in range(WINDOW, STEPS + 1, WINDOW):
        for name in METRICS:
            assert one[step][name] == pytest.approx(two[step][name], abs=1e-5)


def test_the_norm_of_all_gradients_is_that_of_clipping_which_it_does_not_need(runs):
    for step, line in lines(runs / "sliced-1").items():
        clipped = json.loads(next((runs / "sliced-1").glob(f"outputs-{step}-0.json")).read_text())["norm"]
        assert line["gradient_norm/*"] == pytest.approx(clipped, rel=1e-6)
    for line in lines(runs / "metrics-1").values():
        assert 0 < line["gradient_norm/over*"] < line["gradient_norm/*"]
    assert not any(key.startswith("gradient_norm") for line in lines(runs / "plain-1").values() for key in line)


def test_a_resume_leaves_out_the_window_that_it_did_not_see_whole(runs, tmp_path):
    tree = tree_of(runs / "data", tmp_path, training_metrics=METRICS, window_samples=150)
    file = write_config(tmp_path / "mine.toml", tree)
    for steps in (6, STEPS):  # in the middle of the second window
        done = run_trainer("train", file, "--out", tmp_path / "run", "--train.steps", steps)
        assert done.returncode == 0, done.stdout + done.stderr
    whole, resumed = lines(runs / "metrics-1"), lines(tmp_path / "run")
    assert [line["loss"] for line in resumed.values()] == [line["loss"] for line in whole.values()]
    assert [step for step, line in resumed.items() if "auc" in line] == [4, 12]
    for step in (4, 12):
        assert {name: resumed[step][name] for name in METRICS} == {name: whole[step][name] for name in METRICS}


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--report.training_metrics", "acu"), "report.training_metrics is 'acu'; did you mean 'auc'?"),
        (("--report.training_metrics", "mae"), "report.training_metrics has 'mae', which suits no task of this model;"),
        (("--report.training_metrics", "gauc"), "report.training_metrics has 'gauc', which suits no task"),
        (("--report.window_samples", "9"), "--report.window_samples is 9, but report.training_metrics is empty"),
        (("--report.window_samples", "-1"), "--report.window_samples is -1"),
        (("--report.gradient_norms", "under.*"), "report.gradient_norms has 'under.*', which matches no dense weight"),
        (("--report.histograms_of", "t*"), "--report.histograms_of is set, but report.histograms_every_steps is not"),
    ],
)
def test_wrong_input_is_one_line(runs, tmp_path, flags, line):
    file = write_config(tmp_path / "mine.toml", config(runs / "data"))
    done = run_trainer("train", file, "--out", tmp_path / "run", *flags)
    assert done.returncode == 2, done.stdout
    (told,) = done.stderr.splitlines()
    assert line.removeprefix("--") in told
