"""Samples are dealt by a column with their costs."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import write_config
from jobs import config, launch_rounds, losses, saved_tensors, write_rows
from sequences import sequence_config, write_histories
from test_dealing import BATCH, SQUARES, batches, samples_of

from trainer.__main__ import main as trainer
from trainer.config.data import BalanceConfig, EvenStepsConfig
from trainer.config.root import Config
from trainer.core.errors import InputError

LONGEST, STEPS, HALF = 9, 8, 5
BY_LENGTH = {"features": ["history"], "squares": SQUARES}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Histories, with a column of what each costs by its length."""
    folder = write_histories(tmp_path_factory.mktemp("costs") / "data", 10 * BATCH + 37)
    file = folder / "part.parquet"
    table = pq.read_table(file)
    lengths = [min(len(one or []), LONGEST) for one in table["history"].to_pylist()]
    costs = pa.array([length + SQUARES * length**2 for length in lengths])
    pq.write_table(table.append_column("cost", costs), file, row_group_size=64)
    tree = sequence_config(folder, "din")
    tree["data"] |= {"shuffle_window_rows": 128}
    tree["data"]["sparse"]["history"]["max_ids"] = LONGEST
    return Config.model_validate(tree).data


def dealing(data, balance, even_steps):
    update = {"balance": BalanceConfig(**balance), "even_steps": EvenStepsConfig(**even_steps)}
    return data.model_copy(update=update)


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_a_column_of_lengths_deals_as_the_lengths_do(data, ranks):
    by_length, by_column = dealing(data, BY_LENGTH, BY_LENGTH), dealing(data, {"cost": "cost"}, {"cost": "cost"})
    others = dealing(data, {}, {})
    for rank in (0, ranks - 1):
        expected, found, plain = (batches(one, rank, ranks, one.balance)[1] for one in (by_length, by_column, others))
        assert all(torch.equal(one.dense, two.dense) for one, two in zip(expected, found, strict=True))
        assert all(torch.equal(one.places, two.places) for one, two in zip(expected, found, strict=True))
        assert not all(torch.equal(one.dense, two.dense) for one, two in zip(expected, plain, strict=True))


def test_each_key_may_have_a_column_of_its_own(data):
    file = data.train[0] + "/part.parquet"
    table = pq.read_table(file)
    pq.write_table(table.append_column("none", pa.array(np.zeros(len(table)))), file, row_group_size=64)
    both = dealing(data, {"cost": "none"}, {"cost": "cost"})
    assert both.costs == ["none", "cost"]
    alone = dealing(data, {}, {"cost": "cost"})
    whole = batches(alone, 0, 1, None)[1]
    parts = [batches(both, rank, 2, both.balance)[1] for rank in range(2)]
    for step, batch in enumerate(whole):
        assert sorted(sample for part in parts for sample in samples_of(part[step])[0]) == samples_of(batch)[0]
        assert parts[0][step].places.tolist() == list(range(BATCH // 2))  # nothing costs anything


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs without lists on 1 and 2 ranks, which make several steps at once, and that on 2 ranks resumed."""
    folder = tmp_path_factory.mktemp("cost-runs")
    for number, file in enumerate(sorted(write_rows(folder / "data", [200, 10, 54]).glob("*.parquet"))):
        table = pq.read_table(file)
        costs = pa.array(np.random.default_rng(number).integers(0, 100, len(table)))
        pq.write_table(table.append_column("cost", costs), file, row_group_size=64)

    def job(name, steps=STEPS, **options):
        by = {"data__balance": {"cost": "cost"}, "data__even_steps": {"cost": "cost"}}
        evaluated = {"data__validation": [str(folder / "data")], "data__shuffle_window_rows": 100}
        tree = config(folder / "data", train__steps=steps, checkpoint__every_steps=HALF, **by, **evaluated)
        return {"config": tree, "out": str(folder / name)} | options

    launch_rounds([(2, [job("2"), job("resumed", HALF)]), (1, [job("1")])], folder)
    launch_rounds([(2, [job("resumed", resume="must")])], folder)
    return folder


def test_a_run_is_the_same_on_any_number_of_ranks_and_after_a_resume(runs):
    assert losses(runs / "1") == pytest.approx(losses(runs / "2"), rel=1e-5)
    assert losses(runs / "resumed") == losses(runs / "2")
    before, after = saved_tensors(runs / "2", STEPS), saved_tensors(runs / "resumed", STEPS)
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_ranks_get_samples_of_about_the_same_cost(runs):
    tree = config(runs / "data", data__dense={"cost": {}}, data__balance={"cost": "cost"})
    data = Config.model_validate(tree).data

    def apart(balance):
        """Returns by how much the costs of two ranks differ in each step."""
        costs = [
            torch.stack([batch.dense[:, 0].sum() for batch in batches(data, rank, 2, balance, range(4))[1]])
            for rank in range(2)
        ]
        return (costs[0] - costs[1]).abs()

    assert (apart(data.balance) <= 100).all()  # the most expensive sample
    assert (apart(None) > 100).any()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, r"column 'cost': null is not allowed for a cost"),
        (-1.0, r"column 'cost': -1\.0 is not a cost; costs are at least 0"),
        (float("nan"), r"column 'cost': nan is not a cost"),
        (float("inf"), r"column 'cost': inf is not a cost"),
    ],
)
def test_a_cost_is_a_number_of_at_least_0(runs, tmp_path, value, message):
    costs = pa.array([1.0, value], pa.float64())
    (tmp_path / "data").mkdir()
    table = pq.read_table(runs / "data")[:2].drop(["cost"]).append_column("cost", costs)
    pq.write_table(table, tmp_path / "data/0.parquet")
    data = Config.model_validate(config(tmp_path / "data", data__balance={"cost": "cost"})).data
    with pytest.raises(InputError, match=message):
        batches(data, 0, 2, data.balance, range(1))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data__balance": {"cost": "c", "features": ["s0"]}},
            "data.balance.features is ['s0'] and data.balance.cost is 'c'; set one of them",
        ),
        ({"data__even_steps": {"cost": "c", "squares": 1.0}}, "data.even_steps.squares is 1.0, but"),
        (
            {"data__even_steps": {"cost": "c"}, "data__shuffle": False},
            "data.even_steps.cost is 'c', but data.shuffle is false",
        ),
        ({"data__balance": {"cost": "c"}}, "no column 'c'; the file has: d0"),
        ({"data__balance": {"cost": "text"}}, "column 'text' is of type string; it must be a number"),
        (
            {
                "data__balance": {"cost": "c"},
                "data__groups": ["s0"],
                "tasks": {"label": {"loss": "bpr", "group": "s0"}},
            },
            "tasks.label.loss is 'bpr', which compares the samples of a lane, but data.balance.cost is 'c'",
        ),
    ],
)
def test_wrong_settings(tmp_path, capfd, changes, message):
    (file,) = write_rows(tmp_path / "data", [64]).glob("*.parquet")
    table = pq.read_table(file)
    pq.write_table(table.append_column("text", pa.array(["a"] * 64)), file)
    tree = config(tmp_path / "data", **changes)
    assert trainer(["train", str(write_config(tmp_path / "config.toml", tree)), "--out", str(tmp_path / "out")]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert message in line
