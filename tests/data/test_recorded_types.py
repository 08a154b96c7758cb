"""Which types of a column mean the same, in each use that a column can have."""

from datetime import date, datetime

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import find_files

DATA = {
    "dense": {"d": {}, "gone": {"transform": "is_missing"}, "age": {"transform": "age", "now": "2026-01-31"}},
    "sparse": {
        "id": {"rows": 9, "ids": "hash"},
        "cross": {"rows": 9, "ids": "hash", "columns": ["id", "other"]},
        "list": {"rows": 9, "ids": "hash", "weights": "w"},
    },
    "groups": ["g"],
    "labels": ["label"],
}
TABLE = pa.table(
    {
        "d": [1, 2],
        "gone": [1, None],
        "age": pa.array([datetime(2026, 1, 1)] * 2, pa.timestamp("us")),
        "id": pa.array([1, 2], pa.int32()),
        "other": ["a", "b"],
        "list": [[1], [2]],
        "w": [[1.0], [2.0]],
        "g": [1, 2],
        "label": [0, 1],
    }
)
DAYS = pa.array([date(2026, 1, 1)] * 2)


def write(folder, name, **columns):
    table = TABLE
    for column, values in columns.items():
        table = table.set_column(table.schema.get_field_index(column), column, values)
    pq.write_table(table, folder / name)
    return folder / name


def found(file, **changes):
    data = DataConfig.model_validate({"train": [str(file)], "cache": str(file.parent / "cache"), **DATA} | changes)
    return data, find_files("--source", data.train, data).files


@pytest.fixture
def types(tmp_path):
    return RecordedTypes.of_files(*found(write(tmp_path, "run.parquet")), "data.train")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("id", pa.array(["1", "2"]), "column 'id' has strings (string), but data.sparse.id had integers in data.train"),
        ("id", DAYS, "column 'id' has dates (date32[day]), but data.sparse.id had integers"),
        ("other", pa.array([1, 2]), "column 'other' has integers (int64), but data.sparse.cross.columns.1 had strings"),
        ("list", pa.array([["1"], ["2"]]), "but data.sparse.list had lists of integers"),
        ("g", pa.array(["1", "2"]), "but data.groups.g had integers"),
        ("d", DAYS, "column 'd' has dates (date32[day]), but data.dense.d had numbers"),
        ("label", pa.array([0, 1], pa.duration("s")), "but data.labels.label had numbers"),
    ],
)
def test_other_meanings_are_refused(types, tmp_path, column, values, message):
    with pytest.raises(InputError) as refused:
        types.check(*found(write(tmp_path, "later.parquet", **{column: values})))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        *(("id", pa.array([1, 2], dtype)) for dtype in (pa.int64(), pa.uint64(), pa.decimal128(5, 0))),
        ("id", pa.array([True, False])),
        ("id", pa.nulls(2)),
        *(("other", pa.array(["a", "b"], dtype)) for dtype in (pa.large_string(), pa.string_view(), pa.binary())),
        ("other", pa.array(["a", "b"]).dictionary_encode()),
        ("list", pa.array([[1], [2]], pa.large_list(pa.int16()))),
        ("d", pa.array([1.0, 2.0], pa.float32())),
        ("gone", pa.array(["x", None])),
        ("age", DAYS),
        ("label", pa.array([0.0, 1.0])),
    ],
)
def test_the_same_values_in_another_type_are_read(types, tmp_path, column, values):
    types.check(*found(write(tmp_path, "later.parquet", **{column: values})))


def test_a_column_of_another_name_is_held_to_its_feature(types, tmp_path):
    sparse = DATA["sparse"] | {"id": {"rows": 9, "ids": "hash", "column": "other"}}
    with pytest.raises(InputError, match=r"column 'other' has strings \(string\), but data.sparse.id had integers"):
        types.check(*found(write(tmp_path, "later.parquet"), sparse=sparse))


def test_csv_has_the_types_that_its_configuration_gives(tmp_path):
    columns = {"sparse": {"id": {"rows": 9, "ids": "hash"}}, "dense": {}, "groups": [], "labels": ["label"]}
    types = RecordedTypes.of_files(*found(write(tmp_path, "run.parquet"), **columns), "data.train")
    pa_csv.write_csv(TABLE.select(["id", "label"]), tmp_path / "later.csv")
    types.check(*found(tmp_path / "later.csv", **columns, reader="csv"))
    with pytest.raises(InputError, match=r"data\.sparse.id had integers in data.train"):
        types.check(*found(tmp_path / "later.csv", **columns, reader="csv", csv={"strings": ["id"]}))


def test_a_column_without_values_is_recorded_when_it_has_some(tmp_path):
    empty = RecordedTypes.of_files(*found(write(tmp_path, "empty.parquet", id=pa.nulls(2))), "data.train")
    data, files = found(write(tmp_path, "run.parquet"))
    empty.check(data, files)
    later = empty.completed(RecordedTypes.of_files(data, files, "segment 2"))
    with pytest.raises(InputError, match=r"data\.sparse.id had integers in data.train"):
        later.check(*found(write(tmp_path, "later.parquet", id=pa.array(["1", "2"]))))
