"""Tasks that do not suit the model, the lanes or the micro-batches lead to one line, a bug in a loss to a traceback."""

import re

import pytest
from command import run_trainer, write_config
from jobs import config

COMPARED = {"label": "label", "prediction": "score", "loss": "bpr", "group": "s1"}


def changed(task, **changes):
    return {"tasks": {"one": task}, "data__groups": ["s1"], "model__name": "task_models:Heads", **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            changed({"label": "label", "prediction": "scores"}),
            ["tasks.one.prediction is 'scores', which the model does not give", "score, product, classes"],
        ),
        (
            changed({"label": "label", "prediction": "score", "loss": "softmax"}),
            ["tasks.one.loss is 'softmax'", "takes predictions [B, C]", "gives [B] for 'score'"],
        ),
        (
            changed({"label": "label", "prediction": "classes", "loss": "jrc", "group": "s1"}),
            ["takes predictions [B, 2]", "gives [B, 3] for 'classes'", "change the model"],
        ),
        (
            changed({"label": "label", "loss": "softmax"}, model__name="dlrm"),
            ["takes predictions [B, C]", "gives [B] for 'one'"],
        ),
        (
            changed({"label": "label", "prediction": "score", "loss": "task_models:mean"}),
            ["tasks.one.loss gives []", "it must give [B], here [64]"],
        ),
        (
            changed({"label": "label", "prediction": "score", "loss": "task_models:nowhere"}),
            ["tasks.one.loss is 'task_models:nowhere', which cannot be imported"],
        ),
        (
            changed(COMPARED, train__micro_batches=16),
            ["tasks.one.loss is 'bpr'", "1 ranks in 16 micro-batches cut the 8 lanes", "train.micro_batches"],
        ),
        (
            changed({**COMPARED, "across": "batch"}, train__micro_batches=2),
            ["tasks.one.across is 'batch'", "train.micro_batches is 2", "use 1 micro-batch or 'lane'"],
        ),
    ],
)
def test_one_line(refusal, changes, words):
    line = refusal(changes)
    assert all(part in line for part in words), line


def test_more_ranks_than_lanes_are_refused(tmp_path, rows):
    file = write_config(tmp_path / "config.toml", config(rows, **changed(COMPARED), data__lanes=1))
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=2, seconds=300)
    assert done.returncode != 0
    assert "2 ranks in 1 micro-batches cut the 1 lanes" in done.stderr


def test_a_bug_in_a_loss_is_shown_with_its_traceback_and_rank(tmp_path, rows):
    task = {"label": "label", "prediction": "score", "loss": "task_models:failing"}
    file = write_config(tmp_path / "config.toml", config(rows, **changed(task)))
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=2, seconds=300)
    assert done.returncode == 1
    assert re.search(r"rank\s*:?\s*[01]\b", done.stderr)
    for words in ("Traceback", "task_models.py", "ZeroDivisionError: the sum of no weights"):
        assert words in done.stderr
