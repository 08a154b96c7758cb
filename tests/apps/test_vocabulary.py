"""The vocabulary job against a count in plain Python."""

import collections
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.core.errors import InputError


def naive(values, min_count=1, limit=None):
    counts = collections.Counter(value for value in values if value is not None)
    kept = sorted(((-count, value) for value, count in counts.items() if count >= min_count))[:limit]
    return [(value, -count) for count, value in kept]


def written(url):
    table = pq.read_table(url)
    return [*zip(table["id"].to_pylist(), table["count"].to_pylist(), strict=True)], json.loads(
        table.schema.metadata[b"vocabulary"]
    )


@pytest.fixture(scope="module")
def columns(tmp_path_factory):
    """Two files of ids of every kind, and the values of each column."""
    folder, random = tmp_path_factory.mktemp("ids"), np.random.default_rng(5)
    numbers = (random.zipf(1.3, 3000) % 10**12 - 50).tolist()
    bags = [
        None if i % 50 == 7 else [f"ü{n}" for n in numbers[i : i + i % 4]] + [None] * (i % 3 == 0) for i in range(3000)
    ]
    single = [None if i % 9 == 0 else n for i, n in enumerate(numbers)]
    table = pa.table(
        {
            "single": pa.array(single, pa.int64()),
            "bag": pa.array(bags, pa.list_(pa.string())),
            "word": pa.array([str(n % 100) for n in numbers]).dictionary_encode(),
            "other": pa.array(numbers[::-1], pa.int64()),
        }
    )
    for part in range(2):
        pq.write_table(table.slice(part * 1500, 1500), folder / f"{part}.parquet", row_group_size=400)
    values = {"single": single, "bag": [n for bag in bags for n in bag or []], "other": numbers[::-1]}
    return str(folder), values | {"word": [str(n % 100) for n in numbers]}


def test_counts_of_every_kind_of_column(columns, tmp_path, capsys):
    source, values = columns
    found = vocabulary((source,), ("single", "bag", "word"), str(tmp_path))
    for name in ("single", "bag", "word"):
        ids, about = written(tmp_path / f"{name}.parquet")
        assert ids == naive(values[name])
        assert about == found[name]
        assert about["rows"] == len(ids) + 1
        assert about["occurrences"] == about["covered"] == sum(value is not None for value in values[name])
    printed = capsys.readouterr().out
    assert f"rows = {found['bag']['rows']}\n" in printed
    assert "[data.sparse.bag]" in printed


def test_least_count_and_most_rows(columns, tmp_path, capsys):
    source, values = columns
    about = vocabulary((source,), ("bag",), f"file://{tmp_path}", min_count=3, max_rows=20, unseen_rows=4)["bag"]
    ids, _ = written(tmp_path / "bag.parquet")
    assert ids == naive(values["bag"], 3, 16)
    assert (about["rows"], about["kept"], about["distinct"]) == (20, 16, len(naive(values["bag"])))
    assert f"{about['covered'] / about['occurrences']:.2%}" in capsys.readouterr().out


def test_names_that_differ_in_case_alone(tmp_path):
    table = {"Class": ["a"] * 3, "class": ["b"] * 3, 'a "quoted" name': ["c"] * 3}
    pq.write_table(pa.table(table), tmp_path / "ids.parquet")
    found = vocabulary((f"{tmp_path}/ids.parquet",), tuple(table), f"{tmp_path}/out")
    assert {name: written(one["url"])[0] for name, one in found.items()} == {
        name: naive(ids) for name, ids in table.items()
    }


def test_columns_of_long_names(tmp_path):
    """A letter that is not ASCII takes 6 of the 255 bytes of a file name."""
    names = [f"{'название столбца ' * 9}{number}" for number in range(2)]
    pq.write_table(pa.table({name: [number] * 3 for number, name in enumerate(names)}), tmp_path / "a.parquet")
    found = vocabulary((str(tmp_path / "a.parquet"),), tuple(names), str(tmp_path / "out"))
    assert [written(found[name]["url"])[0] for name in names] == [[(0, 3)], [(1, 3)]]


def test_several_columns_as_one(columns, tmp_path, capsys):
    source, values = columns
    vocabulary((source,), ("single", "other"), str(tmp_path), together="number")
    assert written(tmp_path / "number.parquet")[0] == naive(values["single"] + values["other"])
    assert capsys.readouterr().out.count('table = "number"') == 2


@pytest.mark.parametrize("text", [False, True])
def test_counts_that_do_not_fit_into_memory(tmp_path, text):
    """Half of 600,000 ids twice, in 32 MiB; the counts and a sorted copy need more."""
    ids = np.random.default_rng(0).permutation(np.arange(900_000) % 600_000 - 300_000)
    ids = pa.array(ids) if not text else pa.array(ids).cast(pa.string())
    pq.write_table(pa.table({"id": ids}), tmp_path / "ids.parquet", row_group_size=100_000)
    about = vocabulary((str(tmp_path / "ids.parquet"),), ("id",), str(tmp_path), memory_mib=32, overwrite=True)["id"]
    assert (about["distinct"], about["occurrences"]) == (600_000, 900_000)
    twice, once = list(range(-300_000, 0)), list(range(300_000))
    found = pq.read_table(tmp_path / "id.parquet")
    expected = sorted(map(str, twice)) + sorted(map(str, once)) if text else twice + once
    assert found["id"].to_pylist() == expected
    assert found["count"].to_pylist() == [2] * 300_000 + [1] * 300_000


def test_bytes_that_are_not_text(tmp_path):
    pq.write_table(pa.table({"id": [b"b", b"\xff", b"b", b"a"]}), tmp_path / "ids.parquet")
    vocabulary((str(tmp_path / "ids.parquet"),), ("id",), str(tmp_path / "out"))
    assert written(tmp_path / "out/id.parquet")[0] == [(b"b", 2), (b"a", 1), (b"\xff", 1)]
    vocabulary((str(tmp_path / "ids.parquet"),), ("id",), str(tmp_path / "some"), min_count=2)
    assert written(tmp_path / "some/id.parquet")[0] == [("b", 2)]


@pytest.mark.parametrize("name", ["single", "bag"])
def test_an_extended_vocabulary_keeps_the_rows(columns, tmp_path, name):
    """The earlier ids in their order, with the counts of now, then the new ones."""
    source, values = columns
    first = [id for id, _ in naive(values[name], limit=6)][::-1]
    pq.write_table(
        pa.table({name: [*first, *first[:3], *first[:1], "gone" if name == "bag" else -99]}), tmp_path / "a.parquet"
    )
    vocabulary((str(tmp_path / "a.parquet"),), (name,), str(tmp_path / "old"), unseen_rows=4)
    old, _ = written(tmp_path / f"old/{name}.parquet")
    vocabulary((source,), (name,), str(tmp_path / "new"), extends=str(tmp_path / "old"), min_count=3, max_rows=40)
    new, about = written(tmp_path / f"new/{name}.parquet")
    now = collections.Counter(value for value in values[name] if value is not None)
    assert new[: len(old)] == [(id, now[id]) for id, _ in old]
    later = [one for one in naive(values[name], min_count=3) if one[0] not in dict(old)]
    assert new[len(old) :] == later[: 40 - 4 - len(old)]
    assert (about["unseen_rows"], about["rows"], about["kept"]) == (4, 4 + len(new), len(new))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"extends": "nowhere"}, "--extends is 'nowhere/single.parquet'"),
        ({"extends": "{old}", "unseen_rows": 2}, "--unseen-rows is 2, but '{old}/single.parquet', to extend, has 1"),
        ({"extends": "{old}", "max_rows": 3}, "--max-rows is too few for column 'single': "),
        (
            {"extends": "{old}", "columns": ("word",)},
            "--extends: column 'word' has strings, but its vocabulary there has integers",
        ),
        ({"extends": "{plain}"}, "is not a vocabulary"),
    ],
)
def test_wrong_vocabularies_to_extend(columns, tmp_path, arguments, message):
    places = {"old": tmp_path / "old", "plain": tmp_path}
    vocabulary((columns[0],), ("single",), str(places["old"]))
    shutil.copy(places["old"] / "single.parquet", places["old"] / "word.parquet")
    pq.write_table(pa.table({"id": [1], "count": [1]}), tmp_path / "single.parquet")
    given = {name: value.format(**places) if isinstance(value, str) else value for name, value in arguments.items()}
    with pytest.raises(InputError) as refused:
        vocabulary(**{"source": (columns[0],), "columns": ("single",), "out": str(tmp_path / "out")} | given)
    assert message.format(**places) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ("no",)}, "no column 'no'; the file has: single, bag, word, other"),
        ({"columns": ("single", "single")}, "--columns names 'single' twice"),
        ({"columns": ("single",), "min_count": 0}, "--min-count is 0; it must be at least 1"),
        ({"columns": ("single",), "max_rows": 3, "unseen_rows": 3}, "--max-rows is 3, of which --unseen-rows takes 3"),
        ({"columns": ("single",), "memory_mib": 1}, "--memory-mib is 1, with which the ids cannot be counted: "),
        ({"columns": ("single",), "min_count": 10**6}, "none of which occurs --min-count 1000000 times"),
        ({"columns": ("single", "bag"), "together": "x"}, "one vocabulary is of integers or of strings"),
        ({"columns": ("single",), "source": ("no.parquet",)}, "--source: no Parquet file at 'no.parquet'"),
        ({"columns": ("single",), "reader": "orc"}, "data.reader is 'orc'"),
        ({"columns": ("single",), "reader": "csv"}, "--reader is 'csv', whose columns need types"),
        ({"columns": ("single",), "out": "ftpx://a/b"}, "--out is 'ftpx://a/b"),
    ],
)
def test_wrong_arguments(columns, tmp_path, arguments, message):
    with pytest.raises(InputError) as refused:
        vocabulary(**{"source": (columns[0],), "out": str(tmp_path / "out")} | arguments)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_column_without_ids(rows, tmp_path):
    with pytest.raises(InputError, match=r"column 'd0' is of type float; it must be an integer, a string"):
        vocabulary((str(rows),), ("d0",), str(tmp_path))
