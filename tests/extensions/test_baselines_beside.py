"""Baselines beside a run: found and copied, shown under its final metrics, and told when they are of other rows."""

import json
import re
import shutil
from itertools import pairwise

import pytest
import torch
from jobs import launch_rounds, losses, saved_tensors
from simple_rows import config_of, write_splits

from torchx_recsys.apps.baselines.baselines import baselines
from trainer.config.root import Config
from trainer.extensions.baselines.kept import beside

ONLY = ("label rate", "logistic regression")
STEPS = 20  # two epochs


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directory of runs with baselines and without, on one rank and on two, stopped and resumed; their output."""
    folder = tmp_path_factory.mktemp("beside")
    with_them, without, other = (write_splits(folder / name) for name in ("with", "without", "other"))
    kept = baselines(Config.model_validate(config_of(with_them)), only=ONLY)
    (folder / "elsewhere.json").write_text(json.dumps(kept))
    shutil.copy(with_them / "baselines.json", other)
    poor = {"optimizer": {"dense": {"learning_rate": 1e-9}, "sparse": {"learning_rate": 1e-9}}}

    def job(name, files, epochs=2, **sections):
        tree = config_of(files, **sections)
        tree["train"] = {"epochs": epochs}
        return {"config": tree, "out": str(folder / name)}

    elsewhere = {"report": {"tensorboard": False, "interval_steps": 1, "baselines": str(folder / "elsewhere.json")}}
    changed = {"data": {"test": [str(other / "train.parquet")]}}
    alone = [
        job("one", with_them),
        job("without", without),
        job("resumed", with_them, epochs=1),
        job("resumed", with_them),
        job("named", without, 1, **elsewhere),
        job("stale", other, 1, **changed),
        job("poor", with_them, 1, **poor),
    ]
    together = [job("two", with_them), job("two-without", without)]
    return folder, launch_rounds([(1, alone), (2, together)], folder)


def summaries(output):
    """What is printed of each run between its last evaluation and its files."""
    parts = re.split(r"^run directory +", output, flags=re.MULTILINE)
    return {after.split("\n")[0].rpartition("/")[2]: part[part.rfind("test: auc") :] for part, after in pairwise(parts)}


def table(text):
    """The rows of the table by name: values as printed."""
    lines = text.split("\n")
    start = next(place for place, line in enumerate(lines) if line.startswith("---"))
    rows = [re.split(r"  +", line.strip()) for line in lines[start + 1 :]]
    return {row[0]: row[1:] for row in rows if len(row) > 1 and row[0] in ("this model", *ONLY)}


@pytest.mark.parametrize("name", ["one", "two", "resumed", "named"])
def test_they_are_copied_and_shown_under_the_final_metrics(runs, name):
    folder, output = runs
    kept = json.loads((folder / "elsewhere.json").read_text())
    copied = json.loads((folder / name / "baselines.json").read_text())
    assert (copied["validation"], copied["test"]) == (kept["validation"], kept["test"])
    shown = table(summaries(output)[name])
    last = [json.loads(line) for line in (folder / name / "evaluations.jsonl").read_text().splitlines()][-1]
    metrics = ("auc", "log_loss", "calibration")
    assert shown["this model"] == [f"{last[metric]:.5f}" for metric in metrics]
    for baseline in ONLY:
        assert shown[baseline] == [f"{kept['test']['clicked'][metric][baseline]:.5f}" for metric in metrics]


def test_a_model_below_one_is_told_by_validation(runs):
    folder, output = runs
    kept = json.loads((folder / "elsewhere.json").read_text())["validation"]["clicked"]["auc"]["logistic regression"]
    lines = [json.loads(line) for line in (folder / "poor" / "evaluations.jsonl").read_text().splitlines()]
    ours = next(line["auc"] for line in lines if line["split"] == "validation")
    said = f"below logistic regression on validation auc, {ours:.5f} beside {kept:.5f}: see the guide What to do when"
    assert said in summaries(output)["poor"]


def test_those_of_other_rows_are_told_and_not_shown(runs):
    folder, output = runs
    assert "are of other rows (data.test has other files), and are not shown; data.baselines --overwrite True" in output
    assert "this model" not in summaries(output)["stale"]
    assert not (folder / "stale" / "baselines.json").exists()


def test_without_them_a_line_says_how_to_get_them(runs):
    folder, output = runs
    said = f"is not known. Next:  torchx run data.baselines --config {folder}/without/config.toml"
    assert said in summaries(output)["without"]
    assert "no baselines" not in summaries(output)["one"]


@pytest.mark.parametrize(("name", "other"), [("one", "without"), ("two", "two-without"), ("resumed", "one")])
def test_no_bit_of_a_run_is_changed(runs, name, other):
    folder, _ = runs
    assert losses(folder / name) == losses(folder / other)
    ours, theirs = (saved_tensors(folder / run, STEPS) for run in (name, other))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "report.baselines is '{file}', where there is no file; write it with data.baselines, or leave it out"),
        ("{}", "report.baselines is '{file}', which data.baselines did not write; name another file"),
        ('{"about": {"version": 99}}', "report.baselines is '{file}', of version 99, which this version of"),
    ],
)
def test_a_wrong_key_is_refused(refusal, tmp_path, content, message):
    file = tmp_path / "b.json"
    if content is not None:
        file.write_text(content)
    assert message.format(file=file) in refusal({"report__baselines": str(file)})


@pytest.mark.parametrize(
    ("pattern", "url"),
    [
        ("data/train", "data/baselines.json"),
        ("data/train/", "data/baselines.json"),
        ("train.parquet", "baselines.json"),
        ("/data/day=*/rows/*.parquet", "/data/baselines.json"),
        ("data/*.parquet", "data/baselines.json"),
        ("s3://bucket/a/train", "s3://bucket/a/baselines.json"),
        ("s3://bucket/train", "s3://bucket/baselines.json"),
        ("s3://bucket", "s3://bucket/baselines.json"),
        ("s3://bucket/*.parquet", "s3://bucket/baselines.json"),
        ("~/data/train", "~/data/baselines.json"),
    ],
)
def test_they_are_beside_the_files(pattern, url):
    assert beside(pattern) == url
