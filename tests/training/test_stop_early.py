"""Training that ends early, and the final evaluation of the best checkpoint."""

import json
import math
import shutil

import pytest
import torch
from command import run_trainer, write_config
from jobs import config, launch, launch_rounds, saved_tensors, write_rows
from trainer_process import committed

from trainer.config.train import StopEarlyConfig
from trainer.training.stop_early import reason_to_stop

END = 12  # overfits from the first evaluation on, so that two evaluations later nothing is better


def lines(*values, metric="auc", split="validation"):
    return [{"step": 10 * number, "split": split, metric: value} for number, value in enumerate(values, 1)]


@pytest.mark.parametrize(
    ("settings", "values", "stops"),
    [
        ({}, [0.5, 0.6, 0.7], False),
        ({}, [0.7, 0.6, 0.6], True),
        ({}, [0.7, 0.7, 0.7], True),  # equal is no better
        ({}, [0.5, 0.7, 0.6], False),
        ({}, [0.7, 0.6, 0.6, 0.8], False),  # late, but better
        ({"min_change": 0.05}, [0.7, 0.74, 0.74], True),
        ({"min_change": 0.05}, [0.7, 0.74, 0.76], False),  # by steps that count together
        ({}, [math.nan, math.nan], True),
        ({}, [math.nan, 0.5], False),
        ({}, [0.5, math.nan, math.nan], True),
        ({"target": 0.7}, [0.5, 0.7], True),
        ({"target": 0.7}, [0.5, 0.69], False),
        ({"metric": "log_loss"}, [0.5, 0.6, 0.6], True),
        ({"metric": "log_loss"}, [0.5, 0.4, 0.3], False),
        ({"metric": "log_loss", "target": 0.3}, [0.5, 0.3], True),
        ({"metric": "log_loss", "target": 0.3}, [0.5, 0.31], False),
        ({"metric": "auc/click"}, [0.7, 0.6, 0.6], True),
        ({"patience": 1}, [0.7], False),
        ({"patience": 1}, [0.7, 0.6], True),
    ],
)
def test_when_training_ends(settings, values, stops):
    chosen = StopEarlyConfig.model_validate({"metric": "auc", "patience": 2} | settings)
    found = lines(*values, metric=chosen.metric)
    assert (reason_to_stop(chosen, found, 10 * len(values)) is not None) == stops
    others = lines(*reversed(values), metric=chosen.metric, split="test")
    assert reason_to_stop(chosen, found + others, 10 * len(values)) == reason_to_stop(chosen, found, 10 * len(values))
    assert reason_to_stop(chosen, found, 10 * len(values) + 1) is None  # there is no evaluation of this step
    assert reason_to_stop(StopEarlyConfig(), found, 10 * len(values)) is None


def stopping(folder, saved, **changes):
    return config(
        folder / "data",
        optimizer__sparse={"name": "rowwise_adagrad", "learning_rate": 0.3},
        data__validation=[str(folder / "validation")],
        data__test=[str(folder / "data")],
        evaluate__every_steps=4,
        checkpoint__every_steps=saved,
        **{"train__steps": 16, "train__stop_early": {"metric": "auc", "patience": 2}} | changes,
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that ends early, started twice; others that were struck on the way, and that go on after the end."""
    folder = tmp_path_factory.mktemp("stop")
    write_rows(folder / "data", [200, 10, 54])
    write_rows(folder / "validation", [90], seed=3)
    best = {"checkpoint__keep__best": "auc", "evaluate__final": "best"}
    jobs = {
        "early": stopping(folder, 5),
        "best": stopping(folder, 4, **best),
        "off": stopping(folder, 5, train__stop_early={}),
    }
    launch([{"config": settings, "out": str(folder / name)} for name, settings in jobs.items()], 2, folder)
    for name in ("again", "killed", "unevaluated", "untested", "longer"):
        shutil.copytree(folder / "early", folder / name)
    shutil.copytree(folder / "best", folder / "best-again")
    shutil.rmtree(folder / f"killed/checkpoints/step-{END:09d}")
    keep_evaluations(folder / "unevaluated", 2)
    keep_evaluations(folder / "untested", 3)
    again = {name: jobs["early"] for name in ("again", "killed", "unevaluated", "untested")}
    again["best-again"] = jobs["best"]
    again["longer"] = stopping(folder, 5, train__stop_early={"metric": "auc", "patience": 9})
    launch_rounds([(2, [{"config": each, "out": str(folder / name)} for name, each in again.items()])], folder)
    return folder


def keep_evaluations(out, number):
    text = (out / "evaluations.jsonl").read_text()
    (out / "evaluations.jsonl").write_text("".join(text.splitlines(keepends=True)[:number]))


def evaluations(out):
    return [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]


def evaluated(out):
    return [(line["step"], line["split"]) for line in evaluations(out)]


def test_training_ends_early_with_a_checkpoint_and_the_final_evaluation(runs):
    assert evaluated(runs / "early") == [(4, "validation"), (8, "validation"), (END, "validation"), (END, "test")]
    assert committed(runs / "early") == [5, 10, END]
    facts = json.loads((runs / "early/run.json").read_text())
    assert (facts["state"], facts["step"]) == ("finished", END)


@pytest.mark.few(2, "two stand for all")
@pytest.mark.parametrize("name", ["again", "killed", "unevaluated", "untested"])
def test_the_same_command_ends_in_the_same_way(runs, name):
    """After the end at once; killed before it, in the evaluation that decides, or in the last one."""
    assert evaluations(runs / name) == evaluations(runs / "early")
    assert (runs / name / "metrics.jsonl").read_text().count("\n") == END
    straight, other = saved_tensors(runs / "early", END), saved_tensors(runs / name, END)
    assert all(torch.equal(value, other[key]) for key, value in straight.items())


@pytest.mark.more("a detail")
def test_with_more_patience_the_same_run_trains_on(runs):
    straight, longer = saved_tensors(runs / "off", 16), saved_tensors(runs / "longer", 16)
    assert straight.keys() == longer.keys()
    assert all(torch.equal(value, longer[name]) for name, value in straight.items())
    assert evaluated(runs / "longer")[-2:] == [(16, "validation"), (16, "test")]


def test_the_last_evaluation_is_of_the_best_checkpoint(runs):
    found = {(line["step"], line["split"]): line for line in evaluations(runs / "best")}
    assert [*found] == [(4, "validation"), (8, "validation"), (END, "validation"), (4, "test")]
    assert found[4, "validation"]["auc"] > found[END, "validation"]["auc"]
    assert 4 in committed(runs / "best")
    assert evaluations(runs / "best-again") == evaluations(runs / "best")
    done = run_trainer("evaluate", runs / "best/config.toml", "--out", runs / "best", "--checkpoint", "best")
    assert done.returncode == 0, done.stderr
    written = json.loads((runs / "best/evaluation-test.json").read_text())
    assert written["step"] == 4
    assert written["log_loss"] == pytest.approx(found[4, "test"]["log_loss"], rel=1e-6)
    last = saved_tensors(runs / "best", END), saved_tensors(runs / "early", END)
    assert all(torch.equal(value, last[1][name]) for name, value in last[0].items())


def test_the_console_and_the_scheduler_are_told_why(runs, tmp_path):
    file = write_config(tmp_path / "config.toml", stopping(runs, 5, train__stop_early={"metric": "auc", "target": 0.4}))
    outcome = tmp_path / "outcome"
    done = run_trainer("train", file, "--out", tmp_path / "out", TORCHX_OUTCOME_FILE=str(outcome))
    assert done.returncode == 0, done.stderr
    reason = "at least as good as train.stop_early.target, 0.4"
    assert outcome.read_text().startswith("finished at step 4, before 16: auc of data.validation is 0.")
    assert reason in outcome.read_text()
    assert f"{reason}\n" in next(line for line in done.stdout.splitlines(True) if "ends early" in line)
