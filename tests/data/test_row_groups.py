"""Row groups as columns: read column by column, or all at once."""

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config.data import DataConfig
from trainer.data.dataset import RowGroup, inspect_files
from trainer.data.row_groups import RowGroupReader

TABLE = pa.table({"a": [1, 2, 3], "b": [4.0, 5.0, 6.0], "c": ["x", "y", "z"]})


@pytest.fixture(params=["local", "memory"])
def reader(request, tmp_path) -> RowGroupReader:
    url = f"{tmp_path}/x.parquet" if request.param == "local" else f"memory://{tmp_path}/x.parquet"
    with fsspec.open(url, "wb") as file:
        pq.write_table(TABLE, file, row_group_size=2)
    config = DataConfig(dense={"b": {}}, labels=["a"], weight="b")  # pyrefly: ignore
    return RowGroupReader(inspect_files("data.train", [url], config), config)


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
