"""Files that are replaced or written to: while a job reads them, and between two starts with the same size and date."""

import os
import shutil

import fsspec
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.row_groups import RowGroupReader

TABLE = pa.table({"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]})
SWAPPED = TABLE.select(["b", "a"])
CHANGED = "replaced or written to after its footer was read"


def write(url, table):
    with fsspec.open(url, "wb") as file:
        pq.write_table(table, file, row_group_size=2)


def config(url, tmp_path, **changes):
    columns = {"dense": {"a": {}}, "labels": ["b"], "numeric_labels": ["b"]}
    return DataConfig.model_validate({"train": [str(url)], "cache": str(tmp_path / "cache"), **columns} | changes)


def readers(url, tmp_path, number=2, **changes):
    """Readers of the same listing, as ranks have them."""
    data = config(url, tmp_path, **changes)
    files = find_files("data.train", data.train, data)
    return files.row_groups, [RowGroupReader(files, data) for _ in range(number)]


@pytest.fixture(params=["local", "memory"])
def url(request, tmp_path):
    found = f"{tmp_path}/x.parquet" if request.param == "local" else f"memory://{tmp_path}/x.parquet"
    write(found, TABLE)
    return found


def test_a_file_with_other_columns_is_not_read_by_the_old_footer(url, tmp_path):
    groups, (first, second) = readers(url, tmp_path)
    assert first.read(groups[0])("a").to_pylist() == [1, 2]
    write(url, SWAPPED)
    for reader in (first, second):  # which has the footer, and which never opened the file
        with pytest.raises(InputError, match=CHANGED):
            reader.read(groups[1])
    groups, (anew, _) = readers(url, tmp_path)
    assert anew.read(groups[1])("a").to_pylist() == [3, 4]


def test_a_file_of_the_same_size_and_date_is_another(tmp_path):
    url = tmp_path / "x.parquet"
    write(url, TABLE)
    groups, (first, second) = readers(url, tmp_path)
    first.read(groups[0])
    before = url.stat()
    write(tmp_path / "y.parquet", SWAPPED)
    os.utime(tmp_path / "y.parquet", ns=(before.st_atime_ns, before.st_mtime_ns))
    (tmp_path / "y.parquet").replace(url)
    assert (url.stat().st_size, url.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    for reader in (first, second):
        with pytest.raises(InputError, match=CHANGED):
            reader.read(groups[0])


def test_a_file_that_is_written_to_while_it_is_open_is_refused(tmp_path):
    url = tmp_path / "x.parquet"
    write(url, TABLE)
    groups, (reader,) = readers(url, tmp_path, 1)
    with reader.open(groups[0]) as column:
        assert column("a").to_pylist() == [1, 2]
        write(url, SWAPPED)
        with pytest.raises(InputError, match=CHANGED):
            column("b")


def test_a_copy_of_the_same_file_is_read_on(tmp_path):
    url = tmp_path / "x.parquet"
    write(url, TABLE)
    groups, (reader,) = readers(url, tmp_path, 1)
    reader.read(groups[0])
    shutil.copy(url, tmp_path / "copy")
    (tmp_path / "copy").replace(url)
    assert reader.read(groups[1])("a").to_pylist() == [3, 4]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.slice(1), "column 'a' had 4 rows of type int64, now 3 of type int64"),
        (TABLE.set_column(0, "a", pa.array([*"wxyz"])), "column 'a' had 4 rows of type int64, now 4 of type string"),
    ],
)
def test_a_reader_without_footers_gives_what_was_listed(tmp_path, table, message):
    url = tmp_path / "x.arrow"
    feather.write_feather(TABLE, url)
    groups, (reader,) = readers(url, tmp_path, 1, reader="arrow")
    feather.write_feather(table, url)
    with pytest.raises(InputError, match=message):
        reader.read(groups[0])


def test_blocks_of_a_compressed_file_are_not_those_of_another_of_its_size_and_date(tmp_path):
    url = tmp_path / "x.csv.gz"
    for value in (1, 2):
        with fsspec.open(url, "wb", compression="gzip") as file:
            file.write(b"a,b\n%d,0\n" % value)
        os.utime(url, (7, 7))
        groups, (reader,) = readers(url, tmp_path, 1, reader="csv")
        assert reader.read(groups[0])("a").to_pylist() == [value]
