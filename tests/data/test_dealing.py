"""Samples are dealt to ranks by cost: the same samples in each step, as many to each rank, at about the same cost."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest
from sequences import sequence_config, write_histories

from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.dealing import dealt
from trainer.data.lanes import Lanes
from trainer.data.loader import Loader

SEED, ROWS, BATCH, SQUARES = 3, 200, 64, 0.5
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
