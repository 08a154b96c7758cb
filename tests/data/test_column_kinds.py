"""Columns of every Arrow type and layout: each gives the values that one expects, or one line of what is allowed."""

import re
from decimal import Decimal
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from column_kinds import (
    FRACTIONAL,
    LAID_OUT,
    LAYOUTS,
    LISTS,
    MEANINGLESS,
    NULL,
    NUMERIC,
    SINGLE,
    TEXTUAL,
    an_id,
    as_list,
    bags,
    columns,
    ids,
    numbers,
    of_type,
    picked,
    read,
    refusal,
    rule,
    single,
    write,
)
from jobs import config as job_config
from jobs import launch, losses

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.columns import check_columns


def test_a_column_that_is_missing_among_many_is_said_in_a_short_line():
    schema = pa.schema([(f"column_{number}", pa.int64()) for number in range(20_000)])
    with pytest.raises(InputError, match=r"no column 'label'; the file has: column_0, .* and 19,980 more$") as refused:
        check_columns("a.parquet", schema, DataConfig())
    assert len(str(refused.value)) < 400


def test_every_type_of_arrow_is_among_these():
    arrays = [*NUMERIC.values(), *TEXTUAL.values(), *MEANINGLESS.values(), NULL]
    seen = {array.type.id for array in arrays}
    seen |= {make(pa.int8()).id for make in LISTS.values()} | {pa.list_(pa.int8(), 2).id}
    seen |= {LAYOUTS[name](arrays[0]).type.id for name in ("dictionary", "runs")}
    known = {name: getattr(pa.lib, name) for name in dir(pa.lib) if name.startswith("Type_")}
    # Two kinds of intervals that pyarrow can read, but has no way to make.
    assert {name for name, number in known.items() if number not in seen} <= {
        "Type_INTERVAL_MONTHS",
        "Type_INTERVAL_DAY_TIME",
    }


@pytest.mark.parametrize("name", NUMERIC)
def test_dense(name, tmp_path):
    batch = read(write(tmp_path, columns(NUMERIC[name])) | {"dense": {"x": {"missing": -1.0}}})
    assert batch.dense[:, 0].tolist() == numbers(NUMERIC[name])


@pytest.mark.parametrize("name", SINGLE)
def test_single_ids(name, tmp_path):
    sparse = {"x": {"rows": 1009, "ids": rule(SINGLE[name])}}
    batch = read(write(tmp_path, columns(SINGLE[name])) | {"sparse": sparse})
    assert bags(batch) == single(ids(SINGLE[name]))


@pytest.mark.parametrize("kind", [*LISTS, "fixed_size_list"])
@pytest.mark.parametrize("name", SINGLE)
def test_lists_of_ids(name, kind, tmp_path):
    values = SINGLE[name]
    first, _, third, fourth = ids(values)
    if kind == "fixed_size_list":
        elements = picked(values, [0, 1, 0, 0, 2, 3, 3, 1])
        lists = pa.FixedSizeListArray.from_arrays(elements, 2, mask=pa.array([False, True, False, False]))
        expected = [[first], [], [third, fourth], [fourth]]
    else:
        large = pa.LargeListArray.from_arrays([0, 2, 2, 2, 5], picked(values, [0, 1, 2, 3, 0]))
        lists = as_list(kind, large, pa.array([False, True, False, False]))
        expected = [[first], [], [], [third, fourth, first]]
    sparse = {"x": {"rows": 1009, "ids": rule(values)}}
    assert bags(read(write(tmp_path, columns(lists)) | {"sparse": sparse})) == expected


# Arrow cannot write runs of views.
@pytest.mark.parametrize(
    ("name", "layout"), [two for two in product(LAID_OUT, LAYOUTS) if two != ("string_view", "runs")]
)
def test_layouts(name, layout, tmp_path):
    array = of_type(name)
    source = write(tmp_path, columns(LAYOUTS[layout](array)))
    if name in NUMERIC:
        batch = read(source | {"dense": {"x": {"missing": -1.0}}})
        assert batch.dense[:, 0].tolist() == numbers(array)
    if name in SINGLE:
        batch = read(source | {"sparse": {"x": {"rows": 1009, "ids": rule(array)}}})
        assert bags(batch) == single(ids(array))


@pytest.mark.parametrize("name", NUMERIC)
def test_labels_and_weights(name, tmp_path):
    array = NUMERIC[name].drop_null()
    expected = numbers(array)
    source = write(tmp_path, {"x": array, "w": pa.array([1.0] * len(array))})
    batch = read(source | {"labels": ["x"], "numeric_labels": ["x"], "weight": "w"})
    assert batch.labels[:, 0].tolist() == expected
    weighed = source | {"labels": ["w"], "weight": "x"}
    if min(expected) >= 0:
        assert read(weighed).weights.tolist() == expected
    else:
        assert "is not a weight" in refusal(weighed)


@pytest.mark.parametrize("name", SINGLE)
def test_groups(name, tmp_path):
    array = picked(SINGLE[name], [0, 2, 0, 3])
    groups = read(write(tmp_path, columns(array)) | {"groups": ["x"]}).groups[:, 0].tolist()
    values = ids(array)
    assert [one == other for one, other in product(groups, groups)] == [
        one == other for one, other in product(values, values)
    ]


def test_columns_without_any_value(tmp_path):
    lists = pa.array([None, [], [None], [None, None]], pa.list_(pa.null()))
    source = write(tmp_path, columns(NULL, y=lists))
    sparse = {"x": {"rows": 5}, "y": {"rows": 5, "ids": "hash"}}
    batch = read(source | {"dense": {"x": {"missing": 3.0}}, "sparse": sparse})
    assert batch.dense[:, 0].tolist() == [3.0] * 4
    assert batch.sparse.lengths().tolist() == [0] * 8
    for role in ({"labels": ["x"]}, {"weight": "x"}, {"groups": ["x"]}):
        assert re.search(r"column 'x' is of type null; (it|a group) must be", refusal(source | role))


@pytest.mark.parametrize("lists", [False, True])
def test_a_file_whose_column_is_empty_among_others(tmp_path, lists):
    values = pa.array([[1], [2, 3], None, []]) if lists else pa.array([1, 2, None, 3])
    write(tmp_path, columns(NULL), "a")
    write(tmp_path, columns(values), "b")
    batch = read({"train": [str(tmp_path)], "sparse": {"x": {"rows": 5}}})
    assert bags(batch) == [[]] * 4 + ([[1], [2, 3], [], []] if lists else [[1], [2], [], [3]])


@pytest.mark.parametrize("name", MEANINGLESS)
def test_types_without_a_meaning(name, tmp_path):
    source = write(tmp_path, columns(MEANINGLESS[name]))
    assert "column 'x' is of type" in refusal(source | {"dense": {"x": {}}})
    assert "it must be a number, a date or a time" in refusal(source | {"dense": {"x": {}}})
    assert "it must be an integer or a list of integers" in refusal(source | {"sparse": {"x": {"rows": 9}}})
    assert "an integer, a string, or a list" in refusal(source | {"sparse": {"x": {"rows": 9, "ids": "hash"}}})
    assert "a group must be an integer or a string" in refusal(source | {"groups": ["x"]})
    for role in ({"labels": ["x"]}, {"weight": "x"}):
        assert "it must be a number" in refusal(source | role)


@pytest.mark.parametrize("name", TEXTUAL)
def test_text_is_no_number(name, tmp_path):
    source = write(tmp_path, columns(TEXTUAL[name]))
    assert "it must be a number" in refusal(source | {"dense": {"x": {}}})
    assert "strings need data.sparse.x.ids = 'hash'" in refusal(source | {"sparse": {"x": {"rows": 9}}})


@pytest.mark.parametrize("name", FRACTIONAL)
def test_fractions_are_no_ids(name, tmp_path):
    source = write(tmp_path, columns(FRACTIONAL[name]))
    assert "it must be an integer, a string" in refusal(source | {"sparse": {"x": {"rows": 9, "ids": "hash"}}})


@pytest.mark.parametrize("digits", [20, 39])
def test_decimals_of_more_than_64_bits(digits, tmp_path):
    make = pa.decimal128 if digits < 39 else pa.decimal256
    largest = pa.array([Decimal(2**64 - 1), Decimal(3)], make(digits, 0))
    sparse = {"x": {"rows": 1009, "ids": "modulo"}}
    assert bags(read(write(tmp_path, columns(largest)) | {"sparse": sparse})) == [[(2**64 - 1) % 1009], [3]]
    larger = pa.array([Decimal(2**64), Decimal(3)], make(digits, 0))
    assert "column 'x': an id has more than 64 bits" in refusal(
        write(tmp_path, columns(larger), "two") | {"sparse": sparse}
    )


def test_a_full_dictionary_with_nulls(tmp_path):
    texts = pa.array([f"text {n}" for n in range(128)])
    column = pa.DictionaryArray.from_arrays(pa.array([*range(128), None], pa.int8()), texts)
    batch = read(write(tmp_path, columns(column)) | {"sparse": {"x": {"rows": 1009, "ids": "hash"}}})
    assert bags(batch) == [[an_id(text)] for text in texts.to_pylist()] + [[]]


def test_bytes_are_hashed_as_the_text_that_they_encode(tmp_path):
    texts = pa.array(["a", "ü"])
    write(tmp_path, columns(texts), "a")
    write(tmp_path, columns(texts.cast(pa.binary())), "b")
    first, second, *others = bags(read({"train": [str(tmp_path)], "sparse": {"x": {"rows": 999, "ids": "hash"}}}))
    assert others == [first, second]


@pytest.mark.parametrize(
    "options",
    [
        *({"use_dictionary": False, "column_encoding": {"x": name}} for name in ("PLAIN", "DELTA_BINARY_PACKED")),
        {"use_dictionary": False, "column_encoding": {"x": "BYTE_STREAM_SPLIT"}},
        *({"compression": name} for name in ("none", "snappy", "gzip", "brotli", "lz4", "zstd")),
        {"data_page_version": "1.0"},
        {"data_page_version": "2.0"},
        {"data_page_size": 16, "write_batch_size": 2},
        {"row_group_size": 1},
        {"version": "1.0"},
        {"store_schema": False},
        {"write_statistics": False, "write_page_index": False},
    ],
    ids=str,
)
def test_encodings_of_parquet(options, tmp_path):
    x, text = pa.array([5, None, 3, 1] * 20, pa.int32()), pa.array(["b", "a", None, "b"] * 20)
    if "column_encoding" in options:
        others = {"text": "DELTA_BYTE_ARRAY", "label": "PLAIN"}
        options = options | {"column_encoding": options["column_encoding"] | others}
    pq.write_table(pa.table(columns(x, text=text)), tmp_path / "a.parquet", **options)
    sparse = {"x": {"rows": 10}, "text": {"rows": 1009, "ids": "hash"}}
    batch = read({"train": [str(tmp_path)], "dense": {"x": {"missing": -1.0}}, "sparse": sparse})
    assert batch.dense[:, 0].tolist() == [5, -1, 3, 1] * 20
    assert bags(batch) == single([5, None, 3, 1] * 20)
    found = [part.tolist() for part in batch.sparse["text"].to_dense()]
    assert found == single([an_id("b"), an_id("a"), None, an_id("b")] * 20)


NAMES = ["a.b", "with space", "é ü 漢", "type", "forward", "x.list.element", "a/b", "'quoted\"", "label.x", "_", "0"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_columns(name, tmp_path):
    table = pa.table({name: [1, 2], "other": [3, 4], "label": [0.0, 1.0]})
    pq.write_table(table, tmp_path / "a.parquet")
    pq.write_table(table.select(["label", "other", name]), tmp_path / "b.parquet")
    batch = read({"train": [str(tmp_path)], "dense": {name: {}, "other": {}}, "sparse": {name: {"rows": 9}}})
    assert batch.dense.tolist() == [[1, 3], [2, 4]] * 2
    assert batch.sparse[name].values().tolist() == [1, 2] * 2


def test_a_column_that_is_there_twice(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([0.0])], names=["x", "x", "label"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert "more than one column 'x'" in refusal({"train": [str(tmp_path)], "dense": {"x": {}}})


ALIKE = [
    (pa.int32(), pa.int64()),
    (pa.int8(), pa.uint64()),
    (pa.bool_(), pa.int64()),
    (pa.decimal128(19, 0), pa.int64()),
    (pa.string(), pa.dictionary(pa.int32(), pa.string())),
    (pa.string(), pa.large_binary()),
]


@pytest.mark.parametrize(("here", "there"), ALIKE, ids=str)
def test_files_that_agree(here, there, tmp_path):
    values = pa.array(["0", "1"]) if here == pa.string() else pa.array([0, 1])
    arrays = [values.dictionary_encode() if pa.types.is_dictionary(one) else values.cast(one) for one in (here, there)]
    for number, array in enumerate(arrays):
        write(tmp_path, columns(array), str(number))
    data = {"train": [str(tmp_path)], "sparse": {"x": {"rows": 1009, "ids": "hash"}}}
    first, second, *others = bags(read(data))
    assert others == [first, second]
    if here != pa.string():
        assert read(data | {"dense": {"x": {}}}).dense[:, 0].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("here", "there", "message"),
    [
        (pa.int64(), pa.string(), r"has strings \(string\), but integers in .*0\.parquet; make them alike"),
        (pa.date32(), pa.int32(), r"has integers \(int32\), but dates in"),
        (pa.timestamp("ms"), pa.timestamp("us"), r"has timestamps in us \(timestamp\[us\]\), but timestamps in ms in"),
        (pa.time32("ms"), pa.timestamp("ms"), r"has timestamps in ms .*, but times in ms in"),
    ],
    ids=str,
)
def test_files_whose_ids_disagree(here, there, message, tmp_path):
    values = pa.array([0, 1], pa.int32())
    for number, dtype in enumerate((here, there)):
        wide = values.cast(pa.int64()) if pa.types.is_timestamp(dtype) else values
        write(tmp_path, columns(wide.cast(dtype)), str(number))
    data = {"train": [str(tmp_path)], "sparse": {"x": {"rows": 1009, "ids": "hash"}}}
    assert re.search(rf"1\.parquet: column 'x' {message}", refusal(data))


def test_numbers_of_another_unit(tmp_path):
    write(tmp_path, columns(pa.array([1500], pa.timestamp("ms"))), "0")
    write(tmp_path, columns(pa.array([1], pa.timestamp("us"))), "1")
    data = {"train": [str(tmp_path)], "dense": {"x": {}}}
    assert read(data).dense[:, 0].tolist() == [1.5, float(np.float32(1e-6))]
    write(tmp_path, columns(pa.array([3], pa.int64())), "2")
    assert "has numbers (int64), but timestamps in" in refusal(data)


def test_training_on_types_with_a_meaning(tmp_path):
    """The same rows, once as integers and floats and once in types that mean the same, train to the same losses."""
    random = np.random.default_rng(0)
    days, cents, user = (random.integers(0, limit, 512) for limit in (2000, 10_000, 90))
    label = (random.random(512) < 0.4).astype(np.float32)
    folders = tmp_path / "plain", tmp_path / "typed"
    for folder in folders:
        folder.mkdir()
    names = np.char.add("user ", user.astype(str))
    tags = [[int(one), int(one) + 1][: one % 3] for one in user]
    pq.write_table(
        pa.table({"day": days, "price": cents / 100, "seen": cents, "user": names, "tags": tags, "label": label}),
        folders[0] / "a.parquet",
        row_group_size=64,
    )
    price = pa.array([Decimal(int(one)).scaleb(-2) for one in cents], pa.decimal128(9, 2))
    typed = {
        "tags": pa.array(tags, pa.large_list(pa.int16())),
        "label": pa.array(label == 1),
        "user": pa.array(names).dictionary_encode(),
        "seen": pa.array(cents, pa.timestamp("s")),
        "price": price,
        "day": pa.array(days, pa.int32()).cast(pa.date32()),
    }
    pq.write_table(pa.table(typed), folders[1] / "a.parquet", row_group_size=64)
    jobs = [
        {
            "config": job_config(
                folder,
                train__steps=6,
                data__dense={"price": {}, "seen": {"transform": "log1p"}},
                data__sparse={
                    "day": {"rows": 2000},
                    "user": {"rows": 100, "ids": "hash"},
                    "tags": {"rows": 100, "ids": "modulo"},
                },
            ),
            "out": str(tmp_path / f"run-{folder.name}"),
        }
        for folder in folders
    ]
    launch(jobs, 2, tmp_path)
    assert losses(tmp_path / "run-plain") == losses(tmp_path / "run-typed")
