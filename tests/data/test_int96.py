"""Timestamps of 96 bits, as Spark writes them: their rows are those of timestamps in microseconds, in all years."""

from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchx_recsys.apps.predict.kept_columns import KeptColumns, kept_schema
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.row_groups import RowGroupReader, find_training_files

OPEN_END = datetime(9999, 12, 31)
UNTIL = [OPEN_END, datetime(2026, 1, 31, 12, 30, 0, 123456), datetime(1, 1, 1), None]
VISITS = [[OPEN_END, datetime(2020, 5, 1)], [datetime(1500, 1, 1), None], None, [OPEN_END]]


def write(file, unit="us", **options):
    table = pa.table(
        {
            "until": pa.array(UNTIL if unit == "us" else UNTIL[1:2] * 4, pa.timestamp(unit)),
            "visits": pa.array(VISITS if unit == "us" else [None] * 4, pa.list_(pa.timestamp(unit))),
            "seen": pa.array([datetime(2026, 1, 1)] * 4, pa.timestamp("us")),
            "label": [0, 1, 0, 1],
        }
    )
    pq.write_table(table, file, **options)
    return file


@pytest.fixture(params=[True, False])
def files(request, tmp_path):
    """The same rows twice: with timestamps of 96 bits, with and without Arrow's own schema, and of 64."""
    narrow = write(tmp_path / "narrow.parquet")
    wide = write(tmp_path / "wide.parquet", use_deprecated_int96_timestamps=True, store_schema=request.param)
    assert pq.read_metadata(wide).schema.column(0).physical_type == "INT96"
    return narrow, wide


def config(*files, **changes):
    sparse = {
        "until": {"rows": 10007, "ids": "hash"},
        "visits": {"rows": 10007, "ids": "hash", "times": "visits", "before": "seen"},
    }
    return DataConfig.model_validate(
        {
            "train": [str(file) for file in files],
            "dense": {"until_age": {"column": "until", "missing": -1.0}},
            "sparse": sparse,
        }
        | changes
    )


def test_numbers_ids_and_histories_are_those_of_microseconds(files):
    found = []
    for file in files:
        data = config(file)
        listed = find_files("data.train", data.train, data)
        column = RowGroupReader(listed, data).read(listed.row_groups[0])
        found.append(decode(Chunk(column, range(4)), data, listed.files.lists))
    narrow, wide = found
    assert narrow.numbers[0].tolist() == wide.numbers[0].tolist()
    assert wide.numbers[0][0] > 2.5e11  # 9999 in seconds
    assert narrow.ids.tolist() == wide.ids.tolist()
    assert narrow.bags["visits"].to_pylist() == wide.bags["visits"].to_pylist()
    assert [len(bag) for bag in wide.bags["visits"].to_pylist()] == [1, 1, 0, 0]


def test_a_filter_keeps_the_same_rows(files):
    for file in files:
        data = config(file, select={"filter": [["until", ">=", "2026-01-01"]]})
        assert find_training_files(data, 0).rows == 2


def test_kept_columns_have_the_same_values(files):
    for file in files:
        data = config(file)
        listed = find_files("--source", data.train, data)
        schema = kept_schema("--keep-columns", ["until"], listed)
        assert KeptColumns(listed, data, schema).read(0, 4)["until"].to_pylist() == UNTIL


def test_both_may_be_in_a_data_set_and_nanoseconds_may_not(files, tmp_path):
    assert find_files("data.train", [str(file) for file in files], config(*files)).rows == 8
    mixed = config(files[1], write(tmp_path / "nano.parquet", "ns"))
    with pytest.raises(InputError, match=r"column 'until' has timestamps in us .*, but timestamps in ns in"):
        find_files("data.train", mixed.train, mixed)
