"""Custom models, several labels, weights of rows, shared tables and bfloat16."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import config, launch_rounds, losses, write_rows

pytestmark = pytest.mark.more("test_sharding.py compares ranks")

MODELS = ["dlrm", "dlrm_dcn", "custom:sum_of_embeddings"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two labels, a weight, two features on one table, one of them a list with nulls."""
    folder = tmp_path_factory.mktemp("model")
    table = pq.read_table(write_rows(folder / "plain", [640]) / "part-00.parquet")
    random = np.random.default_rng(0)
    lists = [None if i % 7 == 0 else list(random.integers(0, 100, i % 4)) for i in range(640)]
    table = table.append_column("history", pa.array(lists, pa.list_(pa.int64())))
    table = table.append_column("buy", pa.array(random.integers(0, 2, 640)))
    table = table.append_column("weight", pa.array(random.random(640).astype(np.float32)))
    (folder / "rich").mkdir()
    pq.write_table(table, folder / "rich/part.parquet", row_group_size=100)
    return folder


def rich(data, **changes):
    tree = config(data / "rich", **changes)
    tree["data"]["sparse"] |= {"history": {"rows": 100, "table": "s0", "pooling": "sum"}}
    tree["data"] |= {"labels": ["label", "buy"], "weight": "weight", "test": [str(data / "rich")]}
    return tree


def still(data):
    """A rate of zero, at which nothing moves."""
    rate = {"learning_rate": 0.0, "name": "sgd"}
    return rich(data, optimizer={"sparse": rate, "dense": rate}, train__steps=10)


def of_model(data, name):
    keys = {"arguments": {"depth": 3}} if ":" in name else {"dense_layers": [16], "over_layers": [16]}
    keys |= {"cross_rank": 4} if name == "dlrm_dcn" else {}
    return config(data / "plain", model={"name": name, "embedding_dim": 8, **keys}, train__steps=30)


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """All runs, by name; those on 2 ranks but for one."""
    folder = tmp_path_factory.mktemp("runs")
    trees = {"rich": rich(data), "still": still(data), **{name: of_model(data, name) for name in MODELS}}
    trees |= {precision: config(data / "plain", train__precision=precision) for precision in ("fp32", "bf16")}
    on_two = [{"config": tree, "out": str(folder / name)} for name, tree in trees.items()]
    launch_rounds([(2, on_two), (1, [{"config": rich(data), "out": str(folder / "alone")}])], folder)
    return folder


def test_losses_do_not_depend_on_the_number_of_ranks(runs):
    np.testing.assert_allclose(losses(runs / "rich"), losses(runs / "alone"), rtol=1e-5)
    metrics = json.loads((runs / "rich/evaluations.jsonl").read_text())
    assert {"auc/label", "auc/buy", "log_loss/label", "log_loss/buy"} <= metrics.keys()
    assert len(json.loads((runs / "rich/plan.json").read_text())["modules"].popitem()[1]) == 6  # seven features


def test_the_loss_is_the_weighted_sum_over_the_samples(data, runs):
    """Where nothing moves, the mean of the steps' losses follows from the first predictions."""
    weights = pq.read_table(data / "rich")["weight"].to_numpy().astype(float)
    metrics = json.loads((runs / "still/evaluations.jsonl").read_text())
    expected = (metrics["log_loss/label"] + metrics["log_loss/buy"]) * weights.sum() / 640
    assert np.mean(losses(runs / "still")) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_models(runs, name):
    curve = losses(runs / name)
    assert np.mean(curve[-5:]) < np.mean(curve[:5])


def test_bfloat16_stays_close(runs):
    exact, rounded = losses(runs / "fp32"), losses(runs / "bf16")
    assert exact != rounded
    np.testing.assert_allclose(rounded, exact, rtol=0.02)
