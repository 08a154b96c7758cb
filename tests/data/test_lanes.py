"""Lanes: every row of an epoch falls into exactly one step; parts as lanes, in as many steps on every rank."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jobs import config, write_rows

from torchx_recsys.apps.predict.inference import with_all_features
from torchx_recsys.apps.predict.parts import cut_into_parts, lanes_of
from trainer.batches.batch import features_only
from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes, check_lanes, default_lanes, share_of

SIZE, BATCH = 32, 8


@st.composite
def some_lanes(draw):
    lanes = draw(st.integers(1, 24))
    return Lanes(draw(st.integers(1, 5000)), lanes, lanes * draw(st.integers(1, 40)), draw(st.booleans()))


@given(some_lanes())
def test_lanes_partition_the_rows(lanes):
    bounds = [lanes.bounds(lane) for lane in range(lanes.lanes)]
    assert [start for start, _ in bounds] == [0, *(stop for _, stop in bounds[:-1])]
    assert bounds[-1][1] == lanes.rows
    lengths = lanes.lengths.tolist()
    assert max(lengths) - min(lengths) <= 1


@given(some_lanes())
def test_steps_hold_every_row(lanes):
    in_steps = [lanes.samples_in_step(step) for step in range(lanes.steps)]
    if lanes.keep_last:
        assert sum(in_steps) == lanes.rows
        assert in_steps[-1] > 0
    else:
        assert set(in_steps) <= {lanes.global_batch_size}
        assert 0 <= lanes.rows - sum(in_steps) < lanes.global_batch_size + lanes.lanes
    assert in_steps == sorted(in_steps, reverse=True)


@given(st.sampled_from([(8, world) for world in (1, 2, 4, 8, 16, 24)] + [(12, 3), (12, 6), (12, 36), (1, 5)]))
def test_ranks_share_lanes_evenly(case):
    lanes, world_size = case
    shares = [share_of(rank, world_size, lanes) for rank in range(world_size)]
    served = [(lane, share.slice) for share in shares for lane in share.lanes]
    assert served == [(lane, piece) for lane in range(lanes) for piece in range(shares[0].slices)]
    assert len({(len(share.lanes), share.slices) for share in shares}) == 1


@given(st.integers(1, 100))
def test_default_lanes(world_size):
    lanes = default_lanes(world_size)
    assert lanes % world_size == 0
    assert 8 <= lanes < max(8, world_size) + world_size


def test_numbers_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"3 ranks cannot share data\.lanes = 8.*1, 2, 4, 8.*multiple"):
        check_lanes(8, 3, 8192)
    with pytest.raises(ValueError, match=r"data\.global_batch_size is 100, which 8 lanes do not divide.*such as 96"):
        check_lanes(8, 2, 100)
    with pytest.raises(ValueError, match="which 16 ranks do not divide; use a multiple of 16, such as 16"):
        check_lanes(8, 16, 8)
    check_lanes(8, 16, 8192)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("parts"), [150, 0, 93], row_group_size=40)


def batches(data, world_size, todo):
    """Returns the batches of each rank, and the parts."""
    settings = Config.model_validate(config(data)).data
    columns = features_only(settings)
    files = find_files("--source", [str(data)], columns)
    parts = cut_into_parts(files.rows, SIZE)
    lanes = lanes_of([parts[number] for number in todo], world_size, BATCH)
    loaders = [Loader(files, columns, lanes, rank, world_size, 0, shuffle=False) for rank in range(world_size)]
    return [list(loader.batches(0, lanes.steps)) for loader in loaders], parts


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("todo", [range(8), [0, 1, 2, 5, 7], [7], [3]], ids=str)
def test_each_rank_reads_its_parts_in_order_and_then_nothing(data, world_size, todo):
    found, parts = batches(data, world_size, [*todo])
    (whole,), _ = batches(data, 1, range(8))
    dense = torch.cat([batch.dense for batch in whole])[:243]
    for rank, of_rank in enumerate(found):
        mine = [parts[number] for number in todo][rank::world_size]
        expected = torch.cat([dense[:0], *(dense[start:stop] for start, stop in mine)])
        read = torch.cat([batch.dense for batch in of_rank])
        weights = torch.cat([batch.weights for batch in of_rank])
        assert len({len(one) for one in found}) == 1
        assert torch.equal(read[: len(expected)], expected)
        assert weights.tolist() == [1.0] * len(expected) + [0.0] * (len(read) - len(expected))


def test_rows_are_those_of_the_files(data):
    import pyarrow.parquet as pq

    (whole,), _ = batches(data, 1, range(8))
    table = pq.read_table(data)
    np.testing.assert_array_equal(torch.cat([batch.dense for batch in whole])[:243, 0], table["d0"].to_numpy())
    ids = torch.cat([batch.sparse["s3"].values() for batch in whole])
    np.testing.assert_array_equal(ids, table["s3"].to_numpy())
    assert {batch.labels.shape for batch in whole} == {(BATCH, 0)}


def test_features_that_are_not_there_are_empty(data):
    settings = Config.model_validate(config(data)).data
    here = features_only(settings, ["d1", "s4", "s2"])
    files = find_files("--source", [str(data)], here)
    lanes = lanes_of(cut_into_parts(files.rows, SIZE), 1, BATCH)
    (whole,), _ = batches(data, 1, range(8))
    for batch, full in zip(Loader(files, here, lanes, 0, 1, 0, False).batches(0, lanes.steps), whole, strict=True):
        widened = with_all_features(batch, here, settings)
        assert torch.equal(widened.dense, full.dense * torch.tensor([0.0, 1.0]))
        assert widened.sparse.keys() == full.sparse.keys()
        for name in settings.sparse:
            known = full.sparse[name].to_dense() if name in ("s2", "s4") else [torch.tensor([])] * BATCH
            assert [ids.tolist() for ids in widened.sparse[name].to_dense()] == [ids.tolist() for ids in known]
