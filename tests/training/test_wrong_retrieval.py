"""A catalogue, features of items and losses over vectors that do not suit one another lead to one line."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from jobs import config

TASK = {"label": "label", "loss": "sampled_softmax", "group": "s1", "metrics": ["recall@5"]}
CATALOGUE = {"items": ["items.parquet"], "id": "s1", "negatives": 8}
WHOLE = {
    "model": {"name": "two_tower", "embedding_dim": 16, "item_features": ["s1"]},
    "tasks": {"one": TASK},
    "data__groups": ["s0", "s1"],
    "data__catalogue": CATALOGUE,
}


def changed(task=None, model=None, catalogue=None, **others):
    """Returns the changes of a whole configuration; None takes a key out."""
    sections = {"task": (TASK, task), "model": (WHOLE["model"], model), "catalogue": (CATALOGUE, catalogue)}
    cut = {
        name: {key: value for key, value in (whole | (changes or {})).items() if value is not None}
        for name, (whole, changes) in sections.items()
    }
    tree = {"tasks": {"one": cut["task"]}, "model": cut["model"], "data__catalogue": cut["catalogue"]}
    return WHOLE | tree | others


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with a catalogue."""
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"s1": np.arange(101), "count": np.ones(101)}), "items.parquet")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            changed(model={"item_features": ["s1", "s11"]}),
            ["model.item_features names 's11', which neither data.dense nor data.sparse has", "did you mean"],
        ),
        (changed(model={"item_features": ["s1", "s1"]}), ["model.item_features names 's1' 2 times"]),
        (
            changed(model={"item_features": None}, catalogue={}),
            ["model.item_features is []", "no feature for the item"],
        ),
        (
            changed(model={"item_features": ["d0", "d1", "s0", "s1", "s2", "s3", "s4", "s5"]}),
            ["leaves no feature for the query"],
        ),
        (changed(model={"name": "dlrm"}), ["model.item_features is ['s1'], which model.name 'dlrm' does not use"]),
        (
            changed(task={"loss": "binary", "group": None, "metrics": None}, catalogue={"negatives": None}),
            ["tasks.one.output is 'logit', but model.name 'two_tower' predicts a 'vectors'"],
        ),
        (changed(task={"group": None}), ["tasks.one.loss is 'sampled_softmax'", "no group is set"]),
        (changed(task={"group": "s0"}), ["tasks.one.group is 's0'", "set it to data.catalogue.id, 's1'"]),
        (
            changed(catalogue={"negatives": None}),
            ["tasks.one.loss is 'sampled_softmax', but there are no negatives", "data.catalogue.negatives is 0"],
        ),
        (
            changed(task={"loss": "in_batch_softmax"}),
            ["data.catalogue.negatives is 8, but no task has the loss 'sampled_softmax'"],
        ),
        (changed(catalogue={"id": "s2"}), ["data.catalogue.id is 's2', which data.groups does not name"]),
        (
            changed(catalogue={"items": None}),
            ["data.catalogue.id is set, but data.catalogue.items is empty"],
        ),
        (
            changed(catalogue={"hard_negatives_per_sample": 3}),
            ["data.catalogue.hard_negatives_per_sample is 3", "data.catalogue.hard_negatives is unset"],
        ),
        (
            changed(catalogue={"negatives_not_in": ["s9"]}),
            ["data.catalogue.negatives_not_in names 's9', which is no sparse feature"],
        ),
        (
            changed(catalogue={"negatives_not_in": ["s1"]}),
            ["data.catalogue.negatives_not_in names 's1', which is the item's own feature; name one of the query"],
        ),
        (
            changed(
                task={"loss": "in_batch_softmax", "group": "s0", "metrics": None},
                catalogue={"negatives": None, "negatives_not_in": ["s0"]},
            ),
            ["needs the item of each sample, but tasks.one.group is 's0'; set it to data.catalogue.id, 's1'"],
        ),
        (
            changed(task={"loss": "in_batch_softmax", "log_q": True, "metrics": None}, data__catalogue={}),
            ["tasks.one.log_q is true, which needs a catalogue"],
        ),
        (
            changed(task={"loss": "in_batch_softmax"}, data__catalogue={}),
            ["tasks.one.metrics has 'recall@5', which ranks all items, but data.catalogue.items is empty"],
        ),
        (
            changed(task={"metrics": ["auc"]}),
            ["tasks.one.metrics has 'auc'", "gives vectors", "ndcg@k, mrr, recall@k, hit_rate@k"],
        ),
        (changed(catalogue={"items": ["no.parquet"]}), ["data.catalogue.items: no Parquet file at 'no.parquet'"]),
        (changed(catalogue={"exclude": ["s11"]}), ["data.catalogue.exclude names 's11'", "did you mean"]),
        (
            changed(catalogue={"exclude": ["s2"]}, data__sparse__s2={"rows": 9, "buckets": [0.0]}),
            ["data.catalogue.exclude names 's2', but data.sparse.s2.buckets is [0.0], which makes no ids of items"],
        ),
        (changed(catalogue={"weight": "clicks"}), ["items.parquet: no column 'clicks'; the file has: s1, count"]),
        (changed(model={"item_features": ["s1", "s2"]}), ["items.parquet: no column 's2'"]),
        (
            changed(catalogue={"hard_negatives": "s3"}),
            ["column 's3' is of type int32; hard negatives must be a list of integers or strings"],
        ),
        (changed(train__micro_batches=16), ["1 rank with train.micro_batches = 16 cut the 8 lanes"]),
        (changed(task={"across": "batch"}, train__micro_batches=2), ["tasks.one.across is 'batch'"]),
    ],
)
def test_one_line(refusal, here, changes, words):
    line = refusal(changes)
    assert all(part in line for part in words), line


def test_more_ranks_than_lanes_are_refused(tmp_path, rows, here):
    """Also where the whole batch is compared: the negatives are those of whole lanes."""
    file = write_config(
        tmp_path / "config.toml", config(rows, **changed(task={"across": "batch"}), data__lanes=1, data__dense={})
    )
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=2, seconds=300)
    assert done.returncode != 0
    assert "2 ranks with train.micro_batches = 1 cut the 1 lane" in done.stderr
