"""Microbatches take the steps of the whole batch, tables included, and are resumed bit for bit."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from jobs import config, launch_rounds, losses, numbers_of_ranks, saved_tensors, write_rows

pytestmark = pytest.mark.more("test_tasks.py and test_sequences.py have micro-batches")

PARTS = [2, 4, 8]
STEPS = 12  # three epochs, each of whose last batch is short
MODELS = {
    "dlrm": {"name": "dlrm", "dropout": 0.1},
    "own": {"name": "custom:sum_of_embeddings", "arguments": {"depth": 3}},
}
PLANS = {1: ["table_wise"], 2: ["row_wise"], 4: ["table_row_wise"]}
MATRIX = "ranks", numbers_of_ranks


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows of which a feature has several ids or none, in a number that no batch divides."""
    folder = write_rows(tmp_path_factory.mktemp("rows"), [130, 90])
    random = np.random.default_rng(1)
    for file in folder.glob("*.parquet"):
        table = pq.read_table(file)
        bags = [random.integers(0, 50, random.integers(0, 4)).tolist() for _ in range(len(table))]
        pq.write_table(table.append_column("bag", pa.array(bags, pa.list_(pa.int32()))), file, row_group_size=64)
    return folder


def settings(data, parts, model="dlrm", steps=STEPS, ranks=2, **changes):
    tree = config(
        data,
        train__steps=steps,
        train__micro_batches=parts,
        planner__sharding_types=PLANS[ranks],
        optimizer__sparse={"name": "rowwise_adagrad", "learning_rate": 0.1},
        optimizer__dense={"name": "adamw", "learning_rate": 0.01, "eps": 1e-4},
        **changes,
    )
    tree["data"]["sparse"]["bag"] = {"rows": 50, "pooling": "mean"}
    tree["model"] |= MODELS[model]
    return tree


@pytest.fixture(scope="module")
def runs(matrix, data, tmp_path_factory):
    """The whole batch on one rank, and every number of parts on every number of ranks; some stopped and resumed."""
    folder = tmp_path_factory.mktemp("micro")

    def job(tree, name):
        return {"config": tree, "out": str(folder / name)}

    rounds = [
        (ranks, [job(settings(data, parts, ranks=ranks), f"{parts}-on-{ranks}") for parts in [1, *PARTS]])
        for ranks in matrix
    ]
    rounds[0][1].extend(job(settings(data, parts, "own", ranks=1), f"own-{parts}") for parts in (1, 4))
    evaluated = {"data__validation": [str(data)], "evaluate__every_steps": 3, "checkpoint__every_steps": 2}
    rounds[1][1].extend(
        job(settings(data, 4, steps=steps, **evaluated), name)
        for name, steps in (("baseline", STEPS), ("resumed", 5), ("resumed", STEPS))
    )
    launch_rounds(rounds, folder)
    return folder


def assert_close(found, expected):
    expected, found = saved_tensors(expected, STEPS), saved_tensors(found, STEPS)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("parts", PARTS)
def test_parts_train_as_the_whole(runs, parts, ranks):
    found, whole = runs / f"{parts}-on-{ranks}", runs / f"1-on-{ranks}"
    np.testing.assert_allclose(losses(found), losses(whole), rtol=1e-6)
    np.testing.assert_allclose(losses(found), losses(runs / "1-on-1"), rtol=1e-5)
    assert_close(found, whole)


def test_a_model_of_ones_own(runs):
    np.testing.assert_allclose(losses(runs / "own-4"), losses(runs / "own-1"), rtol=1e-6)
    assert_close(runs / "own-4", runs / "own-1")


def test_a_resumed_run_ends_bit_for_bit_as_the_baseline(runs):
    baseline, resumed = runs / "baseline", runs / "resumed"
    assert losses(resumed) == losses(baseline)
    evaluations = (resumed / "evaluations.jsonl").read_text()
    assert all(line in evaluations for line in (baseline / "evaluations.jsonl").read_text().splitlines())
    expected, found = saved_tensors(baseline, STEPS), saved_tensors(resumed, STEPS)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
