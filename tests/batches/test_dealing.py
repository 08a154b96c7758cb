"""Samples are dealt by cost, as many to each: those of a step to the ranks, and those of a window to the steps."""

import itertools
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sequences import sequence_config, write_histories

from trainer.batches.loader import Loader
from trainer.batches.windows import dealt, dealt_to_steps
from trainer.config.data import BalanceConfig, EvenStepsConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

SEED, ROWS, BATCH, SQUARES = 3, 200, 64, 0.5
WHOLE_STEPS = 30  # of the data of even steps, whose last step is short
RANKS = [2, 4, 8, 16]


def zipf(samples, longest, seed):
    """Returns lengths up to `longest`, the shorter the more likely."""
    lengths = np.arange(1, longest + 1)
    return np.random.default_rng(seed).choice(lengths, samples, p=lengths**-0.5 / (lengths**-0.5).sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_get_as_many_samples_each_at_about_the_same_cost(ranks, seed):
    lengths = zipf(16 * ranks, 2000, seed).astype(np.float64)
    hands = dealt(lengths, ranks)
    assert hands.shape == (ranks, 16)
    assert sorted(hands.flatten()) == [*range(16 * ranks)]
    assert (np.diff(hands) > 0).all()
    cost = lengths[hands].sum(axis=1)
    assert cost.max() <= 1.02 * cost.mean()
    assert lengths.reshape(ranks, -1).sum(axis=1).max() > cost.max()  # in the order of the lanes
    assert np.array_equal(hands, dealt(lengths, ranks))
    squares = (lengths**2)[hands].sum(axis=1)
    assert squares.max() <= 1.08 * squares.mean()  # dealt by lengths alone


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_histories(tmp_path_factory.mktemp("dealing") / "data", ROWS)
    tree = sequence_config(folder, "hstu", data__balance={"features": ["history"], "squares": SQUARES})
    tree["data"]["sparse"]["history"]["max_ids"] = 9
    for name in ("rated", "at"):
        tree["data"]["sparse"][name]["max_ids"] = 9
    return Config.model_validate(tree).data


def batches(data, rank, ranks, balance, steps=range(0, 8)):
    files = find_files("data.train", data.train, data)
    loader = Loader(files, data, Lanes(files.rows, 8, BATCH), rank, ranks, SEED, True, None, balance)
    return loader, [*loader.batches(steps.start, steps.stop)]


def samples_of(batch):
    """Returns the samples by the value of their first dense feature, with the lengths of their histories."""
    lengths = batch.sparse["history"].lengths().tolist()
    found = zip(batch.dense[:, 0].tolist(), batch.weights.tolist(), lengths, strict=True)
    return sorted(found), float(batch.scale)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_step_has_the_samples_that_it_has_without_dealing(data, ranks):
    whole = batches(data, 0, 1, None)[1]
    parts = [batches(data, rank, ranks, data.balance)[1] for rank in range(ranks)]
    for step, batch in enumerate(whole):
        expected, scale = samples_of(batch)
        found = [samples_of(part[step]) for part in parts]
        assert sorted(sample for samples, _ in found for sample in samples) == expected
        assert [ours for _, ours in found] == pytest.approx([scale * ranks] * ranks)
        assert {len(samples) for samples, _ in found} == {BATCH // ranks}
        places = torch.cat([part[step].places for part in parts])
        assert torch.equal(batch.dense[places], torch.cat([part[step].dense for part in parts]))
        assert batch.places.tolist() == sorted(places.tolist()) == list(range(BATCH))
        costs = [sum(length + SQUARES * length**2 for *_, length in samples) for samples, _ in found]
        dearest = max(length + SQUARES * length**2 for *_, length in expected)
        assert max(costs) <= np.mean(costs) + dearest


def test_a_run_that_begins_later_deals_the_same(data):
    later = batches(data, 1, 4, data.balance, range(5, 8))[1]
    for found, expected in zip(later, batches(data, 1, 4, data.balance)[1][5:], strict=True):
        assert samples_of(found) == samples_of(expected)


def test_a_dealt_sample_is_where_it_is_said_to_be(data):
    ranks = 4
    for rank in range(ranks):
        loader, found = batches(data, rank, ranks, data.balance, range(3, 6))
        for step, batch in enumerate(found, 3):
            for sample in range(0, BATCH // ranks, 5):
                where = loader.locate(step + 1, rank * BATCH // ranks + sample)
                assert (where == "padding") == (batch.weights[sample] == 0)
                if where != "padding":
                    name, group, row = re.fullmatch(r"(.+), row group (\d+), row (\d+)", where).groups()
                    value = pq.ParquetFile(name).read_row_group(int(group))["d0"][int(row)].as_py()
                    assert value == batch.dense[sample, 0]


def test_features_of_single_ids_have_no_lengths_to_deal_by(data):
    balance = data.balance.model_copy(update={"features": ["city"]})
    with pytest.raises(InputError, match=r"data\.balance\.features names 'city', which has single ids"):
        batches(data, 0, 2, balance)
    with pytest.raises(InputError, match=r"data\.even_steps\.features names 'city', which has single ids"):
        batches(data.model_copy(update={"even_steps": EvenStepsConfig(features=["city"])}), 0, 1, None)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("first", "size", "last"), [(8, 8, 8), (3, 8, 5), (1, 64, 63), (5, 5, 2), (40, 64, 9)])
def test_steps_of_a_window_get_their_samples_at_about_the_same_cost(first, size, last, seed):
    sizes = np.array([first, *[size] * 64, last])
    lengths = zipf(sizes.sum(), 2000, seed).astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(lengths))
    place = np.argsort(order)
    steps = np.split(dealt_to_steps(order, lengths, sizes), np.cumsum(sizes)[:-1])
    assert sorted(np.concatenate(steps)) == [*range(len(lengths))]
    assert all((np.diff(place[step]) > 0).all() for step in steps)
    cost, mean = np.array([lengths[step].sum() for step in steps[1:-1]]), lengths.mean() * size
    assert np.abs(cost / mean - 1).max() < 0.02
    assert lengths[order][first:-last].reshape(64, size).sum(axis=1).max() > 1.2 * mean  # in the order of the lane
    for step in (steps[0], steps[-1]):
        assert lengths[step].sum() <= lengths.mean() * len(step) + lengths.max()


@pytest.mark.parametrize("cut", [0, 16])
def test_the_dearest_sample_comes_in_any_step(cut):
    """Or the dearest below a limit, if what all steps take in their first turns is cut to the limit."""
    found = set()
    for seed in range(60):
        lengths = zipf(64, 1999, seed).astype(np.float64)
        lengths[np.argsort(-lengths, kind="stable")[:cut]] = 2000
        order = np.random.default_rng(seed).permutation(64)
        dearest = np.where(lengths < 2000, lengths, 0).argmax()
        found.add(int(np.flatnonzero(dealt_to_steps(order, lengths, np.full(8, 8)) == dearest)[0]) // 8)
    assert found == {*range(8)}


@pytest.fixture(scope="module")
def even(tmp_path_factory):
    folder = write_histories(tmp_path_factory.mktemp("even") / "data", WHOLE_STEPS * BATCH + 37)
    tree = sequence_config(folder, "din", data__even_steps={"features": ["history"]})
    tree["data"]["sparse"]["history"]["max_ids"], tree["data"]["shuffle_window_rows"] = 9, 128
    return Config.model_validate(tree).data


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_even_steps_have_the_same_samples_on_any_number_of_ranks(even, ranks, balanced):
    balance = BalanceConfig(features=["history"]) if balanced else None
    whole = batches(even, 0, 1, None)[1]
    parts = [batches(even, rank, ranks, balance)[1] for rank in range(ranks)]
    for step, batch in enumerate(whole):
        samples = sorted(sample for part in parts for sample in samples_of(part[step])[0])
        assert samples == samples_of(batch)[0]


def test_an_epoch_of_even_steps_has_every_sample_once(even):
    steps = WHOLE_STEPS + 1
    found = batches(even, 0, 1, None, range(2 * steps))[1]
    samples = [batch.dense[batch.weights > 0, 0].tolist() for batch in found]
    assert {*map(len, samples[: steps - 1])} == {BATCH}
    epochs = [list(itertools.chain(*samples[:steps])), list(itertools.chain(*samples[steps:]))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(pq.read_table(even.train[0])["d0"].to_pylist())
    assert epochs[0] != epochs[1]


def test_the_lanes_of_even_steps_cost_the_same(even):
    """But for those that take samples of two windows, which have a dearest sample more or less."""

    def lengths(even_steps):
        data = even.model_copy(update={"even_steps": even_steps})
        found = batches(data, 0, 1, None, range(WHOLE_STEPS))[1]
        return torch.stack([batch.sparse["history"].lengths().reshape(8, -1).sum(dim=1) for batch in found]).float()

    dealt, as_they_come = lengths(even.even_steps), lengths(EvenStepsConfig())
    assert dealt.std() < 0.4 * as_they_come.std()
    assert dealt.max() <= dealt.mean() + 9 < as_they_come.max()


def test_a_run_that_begins_later_has_the_same_even_steps(even):
    later = batches(even, 1, 4, None, range(5, 8))[1]
    for found, expected in zip(later, batches(even, 1, 4, None)[1][5:], strict=True):
        assert samples_of(found) == samples_of(expected)


@pytest.mark.parametrize("balance", [None, BalanceConfig(features=["history"])])
def test_a_sample_of_an_even_step_is_where_it_is_said_to_be(even, balance):
    loader, found = batches(even, 1, 4, balance, range(3, 6))
    for step, batch in enumerate(found, 4):
        for sample in range(0, BATCH // 4, 5):
            where = loader.locate(step, BATCH // 4 + sample)
            name, group, row = re.fullmatch(r"(.+), row group (\d+), row (\d+)", where).groups()
            value = pq.ParquetFile(name).read_row_group(int(group))["d0"][int(row)].as_py()
            assert value == batch.dense[sample, 0]
