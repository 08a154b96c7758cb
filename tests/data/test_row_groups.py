"""Row groups as columns: read column by column, all at once, or once for several windows."""

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config.data import DataConfig
from trainer.data.dataset import DataFile, FileSet, RowGroup
from trainer.data.order import RowSlice
from trainer.data.row_groups import RowGroupReader, SharedRows, shared
from trainer.data.rows import Rows

TABLE = pa.table({"a": [1, 2, 3], "b": [4.0, 5.0, 6.0], "c": ["x", "y", "z"]})


@pytest.fixture(params=["local", "memory"])
def reader(request, tmp_path) -> RowGroupReader:
    url = f"{tmp_path}/x.parquet" if request.param == "local" else f"memory://{tmp_path}/x.parquet"
    with fsspec.open(url, "wb") as file:
        pq.write_table(TABLE, file, row_group_size=2)
    config = DataConfig(dense={"b": {}}, labels=["a"], weight="b")  # pyrefly: ignore
    return RowGroupReader(FileSet((DataFile(url, 0, (2, 1), pa.schema([]), ()),)), config)


def test_columns_of_a_row_group(reader):
    for group in (RowGroup(0, 0, 2), RowGroup(0, 1, 1)):
        expected = TABLE.slice(2 * group.index, group.rows)
        with reader.open(group) as column:
            assert (column("b"), column("a")) == (expected["b"], expected["a"])
        kept = reader.read(group)
        assert (kept("b"), kept("a")) == (expected["b"], expected["a"])


def test_a_row_group_that_is_not_there(reader):
    with pytest.raises(ValueError, match=r"x\.parquet, row group 2: cannot be read, is it whole\?"):
        reader.read(RowGroup(0, 2, 1))


def test_only_row_groups_that_come_again_are_shared():
    first, second, third = (RowGroup(0, index, 9) for index in range(3))
    parts = [RowSlice(first, 6, 9), RowSlice(second, 0, 9), RowSlice(third, 0, 4), RowSlice(first, 2, 6)]
    found = shared([*parts, RowSlice(third, 4, 5)])
    assert {group: (one.whole.start, one.whole.stop, one.uses) for group, one in found.items()} == {
        first: (2, 9, 2),
        third: (0, 5, 2),
    }


def test_shared_rows_are_decoded_once_and_given_up_after_their_last_use():
    group, made = RowGroup(0, 0, 9), []

    def decoded(part):
        made.append(part)
        numbers = np.arange(part.start, part.stop, dtype=np.float32)[None]
        return Rows(numbers, np.empty((0, len(part)), np.int32), {}, *np.empty((2, 0, len(part)), np.int64))

    kept = SharedRows(RowSlice(group, 2, 9), uses=2)
    assert kept.take(RowSlice(group, 5, 9), decoded).numbers.tolist() == [[5, 6, 7, 8]]
    assert kept.take(RowSlice(group, 2, 5), decoded).numbers.tolist() == [[2, 3, 4]]
    assert made == [RowSlice(group, 2, 9)]
    kept.uses = 1
    kept.take(RowSlice(group, 2, 5), decoded)
    assert len(made) == 2
