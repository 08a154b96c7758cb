"""The format of files is known by their names, or by their first bytes, and an error names the reader for them."""

import re

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from torchx_recsys.apps.check_data.check_data import check_data
from torchx_recsys.apps.engines.source import guess_reader
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import find_files

TABLE = pa.table({"clicked": [0, 1] * 50, "price": [float(n) for n in range(100)], "item": ["a", "b"] * 50})


@pytest.fixture
def files(tmp_path):
    """Files of all formats, with and without the ends of their names."""
    for name in ("x.parquet", "in-parquet"):
        pq.write_table(TABLE, tmp_path / name)
    for name in ("x.arrow", "in-arrow"):
        feather.write_feather(TABLE, str(tmp_path / name), compression="uncompressed")
    for name in ("x.csv", "X.CSV", "in-csv", "named.parquet"):
        pa_csv.write_csv(TABLE, tmp_path / name)
    for name in ("x.tsv", "in-tsv"):
        pa_csv.write_csv(TABLE, tmp_path / name, pa_csv.WriteOptions(delimiter="\t"))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    pa_csv.write_csv(TABLE, tmp_path / "one/a.csv")
    pa_csv.write_csv(TABLE, tmp_path / "two/a.csv")
    pq.write_table(TABLE, tmp_path / "two/b.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        *((f"x.{reader}", reader) for reader in ("parquet", "arrow", "csv", "tsv")),
        *((f"in-{reader}", reader) for reader in ("parquet", "arrow", "csv", "tsv")),
        ("X.CSV", "csv"),
        ("one", "csv"),
        ("one/*", "csv"),
        ("nowhere", "parquet"),
    ],
)
def test_source_needs_no_reader(files, name, reader):
    assert guess_reader([f"{files}/{name}"]) == reader


def test_check_data_reads_a_csv_file_without_a_reader(tmp_path, capsys):
    ids = pa.table({"clicked": [0, 1] * 500, "item": [n * n % 1009 * 1_000_003 for n in range(1000)]})
    pa_csv.write_csv(ids, tmp_path / "x.csv")
    check_data(source=(f"{tmp_path}/x.csv",))
    assert re.search(r"^item +sparse +int64 ", capsys.readouterr().out, re.MULTILINE)


def test_several_formats_are_named(files):
    with pytest.raises(InputError, match=r"--source has 1 file of CSV and 1 file of Parquet; .* with --reader csv"):
        guess_reader([f"{files}/two"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("one", r"no Parquet file at '.*one'; it has files of CSV, which data\.reader 'csv' reads"),
        ("x.csv", r"x\.csv: cannot be read as Parquet, and begins like CSV, which data\.reader 'csv' reads"),
        ("named.parquet", r"named\.parquet: cannot be read as Parquet, and begins like CSV, which data\.reader"),
        ("x.arrow", r"begins like Arrow IPC, which data\.reader 'arrow' reads"),
    ],
)
def test_an_error_names_the_reader(files, name, message):
    with pytest.raises(InputError) as refused:
        find_files("data.train", [f"{files}/{name}"], DataConfig(labels=["clicked"]))
    assert re.search(message, str(refused.value)), refused.value
