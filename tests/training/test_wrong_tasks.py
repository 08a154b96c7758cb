"""Tasks that do not suit the model, the labels, the lanes or the microbatches lead to one line."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from jobs import config

from trainer.__main__ import main as trainer

COMPARED = {"label": "label", "prediction": "score", "loss": "bpr", "group": "s1"}

ROW_ID = {"data__labels": ["label", "row_id"], "data__numeric_labels": ["row_id"]}


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
            changed({"label": "label", "loss": "jrc", "group": "s1"}, model__name="custom:Sum"),
            ["takes predictions [B, 2]", "gives [B] for 'one'", "change the model"],
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
            changed({"label": "row_id", "prediction": "classes", "loss": "softmax"}, **ROW_ID),
            ["tasks.one.label is 'row_id', a column with the value ", "3 classes for 'classes'", "0 to 2", "the data"],
        ),
        (
            changed({"label": "label"}, model={"name": "task_models:NoTables"}),
            ["model.name is 'task_models:NoTables', a model that keeps no tables", "self.tables"],
        ),
        (
            {
                "model": {"name": "task_models:IdleTables", "task_weighting": "pareto"},
                "tasks": {"one": {"label": "label"}, "two": {"label": "label"}},
            },
            ["model.task_weighting is 'pareto', which needs the gradients of embeddings", "looks none up", "'fixed'"],
        ),
        (
            changed(COMPARED, train__micro_batches=16),
            ["tasks.one.loss is 'bpr'", "1 rank with train.micro_batches = 16 cut the 8 lanes", "train.micro_batches"],
        ),
        (
            changed({**COMPARED, "across": "batch"}, train__micro_batches=2),
            ["tasks.one.across is 'batch'", "train.micro_batches is 2", "use 1 microbatch or 'lane'"],
        ),
    ],
)
def test_one_line(refusal, changes, words):
    line = refusal(changes)
    assert all(part in line for part in words), line


@pytest.mark.parametrize(
    ("task", "wrong", "why"),
    [
        ({"prediction": "classes", "loss": "softmax"}, 1.5, "the model gives 3 classes"),
        ({"prediction": "score", "loss": "poisson"}, -1.0, "the loss 'poisson' takes labels from 0 up; correct"),
    ],
)
def test_a_label_that_a_loss_cannot_take_is_refused_in_an_evaluation(task, wrong, why, tmp_path, rows, capfd):
    task = {"label": "kind", **task}
    table = pq.read_table(rows)
    for name, kind in (("train", 2.0), ("validation", wrong)):
        kinds = pa.array([kind] * len(table), pa.float32())
        pq.write_table(table.append_column("kind", kinds), tmp_path / f"{name}.parquet")
    columns = {"data__labels": ["kind"], "data__numeric_labels": ["kind"]}
    tree = config(tmp_path / "train.parquet", **changed(task, **columns), train__steps=1)
    tree["data"]["validation"] = [str(tmp_path / "validation.parquet")]
    assert trainer(["train", str(write_config(tmp_path / "c.toml", tree)), "--out", str(tmp_path / "out")]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert f"tasks.one.label is 'kind', a column with the value {wrong:g}, but {why}" in line


def test_a_resumed_run_keeps_the_order_of_its_tasks(tmp_path, rows, capfd):
    """Whose log-variances would otherwise change places."""
    tree = config(rows, train__steps=2, model={"name": "mmoe", "task_weighting": "uncertainty"})
    tree["tasks"] = {"first": {"label": "label"}, "second": {"label": "label", "loss": "focal"}}
    out = ["--out", str(tmp_path / "out")]
    assert trainer(["train", str(write_config(tmp_path / "c.toml", tree)), *out]) == 0
    tree["tasks"] = dict(reversed(tree["tasks"].items()))
    assert trainer(["train", str(write_config(tmp_path / "c.toml", tree)), *out]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "tasks is ['first', 'second'] there and ['second', 'first'] here, and may not change" in line


def test_more_ranks_than_lanes_are_refused(tmp_path, rows):
    file = write_config(tmp_path / "config.toml", config(rows, **changed(COMPARED), data__lanes=1))
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=2, seconds=300)
    assert done.returncode != 0
    assert "2 ranks with train.micro_batches = 1 cut the 1 lane" in done.stderr
