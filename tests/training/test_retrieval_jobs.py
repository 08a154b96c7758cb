"""Two towers train and are evaluated over all items as float64 arithmetic says, on any number of ranks, and resumed."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import write_config
from jobs import launch_rounds, losses, numbers_of_ranks, saved_tensors
from retrieval import ByHand, settings, write_data

from trainer.__main__ import main as trainer
from trainer.config.root import Config

STEPS = 8  # two epochs, each of whose last batch is short
PLANS = {1: ["table_wise"], 2: ["row_wise"], 4: ["column_wise"]}
UNITS = ("lane", "batch")
MATRIX = "ranks", numbers_of_ranks


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("retrieval"))


@pytest.fixture(scope="module")
def runs(matrix, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def job(name, ranks, steps=STEPS, **changes):
        tree = settings(data, planner__sharding_types=PLANS[ranks], train__steps=steps, without_had=True, **changes)
        return {"config": tree, "out": str(folder / name)}

    rounds = {ranks: [job(f"{across}-{ranks}", ranks, across=across) for across in UNITS] for ranks in matrix}
    rounds.setdefault(2, []).extend(
        [
            job("resumed", 2, 3, evaluate__every_steps=2),
            job("resumed", 2, evaluate__every_steps=2),
            job("parts", 2, train__micro_batches=2),
        ]
    )
    launch_rounds([*rounds.items()], folder)
    return folder


@pytest.fixture(scope="module")
def by_hand(data):
    """The losses and the metrics of the reference, by unit."""
    found = {}
    for across in UNITS:
        reference = ByHand(data, Config.model_validate(settings(data, across, train__steps=STEPS, without_had=True)))
        found[across] = reference.losses(STEPS), reference.metrics()
    return found


def evaluation(out):
    lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    return {name.removesuffix("/sampled"): value for name, value in lines[-1].items() if "/sampled" in name}


@pytest.mark.parametrize("across", UNITS)
def test_losses_and_metrics_are_those_of_the_reference(runs, by_hand, across, ranks):
    curve, metrics = by_hand[across]
    assert curve[-1] != pytest.approx(curve[0], rel=1e-2)
    np.testing.assert_allclose(losses(runs / f"{across}-{ranks}"), curve, rtol=1e-5)
    found = evaluation(runs / f"{across}-{ranks}")
    assert found == pytest.approx(metrics, rel=1e-5)


def test_a_resume_is_bit_for_bit(runs):
    assert losses(runs / "resumed") == losses(runs / "lane-2")
    assert evaluation(runs / "resumed") == evaluation(runs / "lane-2")
    expected, found = saved_tensors(runs / "lane-2", STEPS), saved_tensors(runs / "resumed", STEPS)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []


def test_micro_batches_take_the_same_steps(runs):
    np.testing.assert_allclose(losses(runs / "parts"), losses(runs / "lane-2"), rtol=1e-6)


@pytest.mark.slow
def test_a_resume_needs_the_same_catalogue(tmp_path, capfd):
    data = write_data(tmp_path / "data")

    def train(steps, *flags):
        file = write_config(tmp_path / "config.toml", settings(data, train__steps=steps))
        return trainer(["train", str(file), "--out", str(tmp_path / "out"), *flags])

    assert train(1) == 0
    items = pq.read_table(data / "items.parquet")
    pq.write_table(items.sort_by("s1"), data / "items.parquet")
    assert train(2) == 0
    pq.write_table(items.set_column(3, "count", pa.array([1] * len(items))), data / "items.parquet")
    assert train(3) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: data.catalogue.items changed since the checkpoint at ")
    assert train(3, "--data.accept-changed", "True") == 0
    assert train(4) == 0
