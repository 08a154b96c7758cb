"""Custom models, several labels, weights of rows, shared tables and bfloat16."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs import config, launch, losses, write_rows


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


def test_losses_do_not_depend_on_the_number_of_ranks(data, tmp_path):
    for ranks in (1, 2):
        launch([{"config": rich(data), "out": str(tmp_path / str(ranks))}], ranks, tmp_path)
    np.testing.assert_allclose(losses(tmp_path / "2"), losses(tmp_path / "1"), rtol=1e-5)
    metrics = json.loads((tmp_path / "2/evaluations.jsonl").read_text())
    assert {"auc/label", "auc/buy", "log_loss/label", "log_loss/buy"} <= metrics.keys()
    assert len(json.loads((tmp_path / "2/plan.json").read_text())["modules"].popitem()[1]) == 6  # seven features


def test_the_loss_is_the_weighted_sum_over_the_samples(data, tmp_path):
    """With a rate of zero nothing moves: the mean of the steps' losses follows from the first predictions."""
    still = {"learning_rate": 0.0, "name": "sgd"}
    changes = {"optimizer": {"sparse": still, "dense": still}, "train__steps": 10}
    launch([{"config": rich(data, **changes), "out": str(tmp_path / "out")}], 2, tmp_path)
    weights = pq.read_table(data / "rich")["weight"].to_numpy().astype(float)
    metrics = json.loads((tmp_path / "out/evaluations.jsonl").read_text())
    expected = (metrics["log_loss/label"] + metrics["log_loss/buy"]) * weights.sum() / 640
    assert np.mean(losses(tmp_path / "out")) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["dlrm", "dlrm_dcn", "custom:sum_of_embeddings"])
def test_models(data, tmp_path, name):
    model = {"name": name, "embedding_dim": 8, "cross_rank": 4, "arguments": {"depth": 3}}
    if name.startswith("dlrm"):
        model |= {"dense_layers": [16], "over_layers": [16]}
    launch(
        [{"config": config(data / "plain", model=model, train__steps=30), "out": str(tmp_path / "out")}], 2, tmp_path
    )
    curve = losses(tmp_path / "out")
    assert np.mean(curve[-5:]) < np.mean(curve[:5])


def test_bfloat16_stays_close(data, tmp_path):
    jobs = [
        {"config": config(data / "plain", train__precision=precision), "out": str(tmp_path / precision)}
        for precision in ("fp32", "bf16")
    ]
    launch(jobs, 2, tmp_path)
    exact, rounded = losses(tmp_path / "fp32"), losses(tmp_path / "bf16")
    assert exact != rounded
    np.testing.assert_allclose(rounded, exact, rtol=0.02)
