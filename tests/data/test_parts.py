"""Parts as lanes: every row once, in order, in as many steps on every rank; features alone, and beside empty ones."""

import numpy as np
import pytest
import torch
from jobs import config, write_rows

from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.features import features_only, with_all_features
from trainer.data.loader import Loader
from trainer.data.parts import cut_into_parts, lanes_of

SIZE, BATCH = 32, 8


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
