"""Vectors of texts: the hashed ones against integers in Python, files as they were, jobs that go on, wrong input."""

import itertools
import re
import unicodedata

import numpy as np
import own_encoders
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_torchx

from torchx_recsys.apps.embed_text.encoders import FACTOR, hashed_texts
from trainer.__main__ import main as trainer

MASK = 2**64 - 1
TITLES = [
    "Toy Story (1995)",
    "Toy  story 2",
    None,
    "",
    "Amélie",
    "Ame\u0301lie",
    "...",
    "\uff26\uff35\uff2c\uff2c width",
    "日本 映画",
    "Toy Story (1995)",
]


def mixed(value):
    """splitmix64 in Python's integers."""
    x = (value + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def unit(vector):
    return vector / (np.linalg.norm(vector) or 1.0)


def by_hand(text, width):
    """The documented vector of a text, feature by feature."""
    words = re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold())
    line = f" {' '.join(words)} ".encode() if words else b""
    grams = [line[start : start + n] for n in (3, 4, 5) for start in range(len(line) - n + 1)]
    kinds = (
        [one.encode() for one in words],
        [f"{a} {b}".encode() for a, b in itertools.pairwise(words)],
        grams,
    )
    total = np.zeros(width)
    for kind, features in enumerate(kinds):
        vector = np.zeros(width)
        for feature in features:
            polynomial = sum((byte + 1) * pow(FACTOR, place, 2**64) for place, byte in enumerate(feature)) + kind
            bits = mixed(polynomial & MASK)
            vector[bits % width] += -1 if bits >> 63 else 1
        total += unit(vector)
    return unit(total)


@pytest.mark.parametrize("width", [1, 37, 64])
def test_hashed_vectors_are_those_of_the_documented_features(width):
    texts = [title for title in TITLES if title is not None]
    found = hashed_texts(texts, width)
    np.testing.assert_allclose(found, [by_hand(text, width) for text in texts], atol=1e-12)
    np.testing.assert_array_equal(hashed_texts([], width), np.empty((0, width)))


def test_texts_that_look_alike_are_near():
    toy, same, other, accented, composed = hashed_texts(["Toy Story (1995)", "toy story 2", "Heat", *TITLES[4:6]], 256)
    assert toy @ same > 0.5 > 0.2 > abs(toy @ other)
    np.testing.assert_array_equal(accented, composed)


def write(folder, dtype=None):
    """Writes two files of titles, in row groups of 4 rows, and a file without rows."""
    (folder / "train/part").mkdir(parents=True)
    for name, titles in (
        ("train/a", TITLES),
        ("train/part/b", TITLES[::-1]),
        ("items", TITLES[:3]),
        ("train/none", []),
    ):
        columns = {
            "title": pa.array(titles, dtype or pa.string()),
            "n": pa.array(range(len(titles)), pa.int16()),
            "tags": pa.array([[1, 2]] * len(titles), pa.list_(pa.int8())),
        }
        pq.write_table(pa.table(columns), folder / f"{name}.parquet", row_group_size=4)
    return folder


def embed(*words, code=0):
    assert trainer(["embed-text", *map(str, words)]) == code


PLACES = ("train/a.parquet", "train/part/b.parquet", "train/none.parquet", "items.parquet")


@pytest.mark.parametrize("precision", ["single", "half"])
def test_files_keep_their_rows_columns_and_row_groups(tmp_path, capfd, precision):
    data, out = write(tmp_path / "data"), tmp_path / "out"
    (data / "train/_draft.parquet").write_text("no Parquet")
    words = ("--column", "title", "--out", out, "--width", 37, "--precision", precision)
    embed("--source", data / "train", data / "items.parquet", *words)
    dtype = {"single": pa.float32(), "half": pa.float16()}[precision]
    for place in PLACES:
        before, after = pq.ParquetFile(data / place), pq.ParquetFile(out / place)
        assert after.schema_arrow.field("title_vector").type == pa.list_(pa.field("element", dtype), 37)
        assert after.read().drop(["title_vector"]).equals(before.read())
        sizes = [[file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)] for file in (before, after)]
        assert sizes[0] == sizes[1]
        for title, vector in zip(*(after.read()[name].to_pylist() for name in ("title", "title_vector")), strict=True):
            if title is None:
                assert vector is None
            else:
                np.testing.assert_allclose(vector, by_hand(title, 37), atol=1e-3 if precision == "half" else 1e-6)
    said = capfd.readouterr().out
    assert f"--source: left out 1 path, hidden or temporary: {data}/train/_draft.parquet\n" in said
    assert "23 rows in 4 files" in said
    assert "with vectors of 8 values that the encoder got" in said
    assert "title_vector = { width = 37 }" in said
    assert f"check-data --source {out}" in said


def test_a_dictionary_and_large_strings_have_the_same_vectors(tmp_path):
    found = []
    for number, dtype in enumerate((pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()))):
        data, out = write(tmp_path / f"data{number}", dtype), tmp_path / f"out{number}"
        embed("--source", data / "items.parquet", "--column", "title", "--out", out, "--vector", "v")
        found.append(pq.read_table(out / "items.parquet")["v"])
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])


def test_the_component_embeds_on_this_machine(tmp_path):
    write(tmp_path / "data")
    words = ("data.embed_text", "--source", "data", "--column", "title", "--out", "out", "--width", "16")
    done = run_torchx("run", "-s", "local_cwd", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(str(one.relative_to(tmp_path / "out")) for one in tmp_path.glob("out/**/*.parquet")) == sorted(PLACES)
    assert pq.read_schema(tmp_path / "out/items.parquet").field("title_vector").type.list_size == 16


def test_an_own_function_gets_each_value_once(tmp_path):
    data = write(tmp_path / "data")
    words = ("--column", "title", "--encoder", "own_encoders:sizes", "--batch-size", 3)
    own_encoders.CALLS.clear()
    embed("--source", data, "--out", tmp_path / "out", *words)
    given = [value for call in own_encoders.CALLS for value in call]
    assert sorted(given) == sorted({title for title in TITLES if title is not None})
    assert max(map(len, own_encoders.CALLS)) == 3
    rows = pq.read_table(tmp_path / "out/train/a.parquet").to_pylist()
    assert [row["title_vector"] for row in rows] == [
        title if title is None else [len(title), len(title) ** 2] for title in TITLES
    ]


def test_an_own_function_takes_the_bytes_of_images(tmp_path):
    images = [b"\x89PNG\xff\x00", None, b"\xff\xd8"]
    pq.write_table(pa.table({"image": images}), tmp_path / "rows.parquet")
    words = ("--source", tmp_path / "rows.parquet", "--column", "image", "--out", tmp_path / "out")
    embed(*words, "--encoder", "own_encoders:sizes")
    assert pq.read_table(tmp_path / "out/rows.parquet")["image_vector"].to_pylist() == [[6, 36], None, [2, 4]]


def test_an_interrupted_job_goes_on_behind_the_last_whole_file(tmp_path, capfd):
    data = tmp_path / "data"
    data.mkdir()
    for name, titles in (("a", ["one", "two"]), ("b", ["three", "stop"]), ("c", ["five"])):
        pq.write_table(pa.table({"title": titles}), data / f"{name}.parquet", row_group_size=1)
    words = ("--source", data, "--column", "title", "--out", tmp_path / "out", "--encoder")
    with pytest.raises(RuntimeError, match="told to stop"):
        embed(*words, "own_encoders:fails_at_stop")
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["a.parquet"]
    before = (tmp_path / "out/a.parquet").stat()
    pq.write_table(pa.table({"title": ["three", "four"]}), data / "b.parquet")
    embed(*words, "own_encoders:fails_at_stop")
    assert "1 of 3 files are in" in capfd.readouterr().out
    assert (tmp_path / "out/a.parquet").stat().st_mtime_ns == before.st_mtime_ns
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["a.parquet", "b.parquet", "c.parquet"]
    pq.write_table(pa.table({"title": ["one", "changed"]}), data / "a.parquet")
    embed(*words, "own_encoders:fails_at_stop", code=2)
    assert "--out would replace" in capfd.readouterr().err
    embed(*words, "own_encoders:fails_at_stop", "--overwrite", "True")
    assert pq.read_table(tmp_path / "out/a.parquet")["title_vector"].to_pylist() == [[3, 9], [7, 49]]


WRONG = {
    "no column": (("--column", "name"), "--column is 'name', of which", "it has: title, n, tags"),
    "numbers": (("--column", "n"), "--column is 'n', of type int16 in", "it must hold texts; bytes are for an"),
    "there already": (("--column", "title", "--vector", "n"), "--vector is 'n', a column that", "name another"),
    "in place": (
        ("--column", "title", "--out", "HERE"),
        "--out is '",
        "where --source is read; name another directory",
    ),
    "unknown": (("--column", "title", "--encoder", "hsah"), "--encoder is 'hsah'", "did you mean 'hash'"),
    "no package": (
        ("--column", "title", "--encoder", "model2vec:small"),
        "--encoder is 'model2vec:small', which needs a package; pip install model2vec",
        "",
    ),
    "no module": (
        ("--column", "title", "--encoder", "nowhere:f"),
        "--encoder is 'nowhere:f', which cannot be imported",
        "",
    ),
    "a width": (
        ("--column", "title", "--encoder", "own_encoders:sizes", "--width", 3),
        "--width is 3, but --encoder",
        "",
    ),
    "one number": (
        ("--column", "title", "--encoder", "own_encoders:one_number"),
        "--encoder is 'own_encoders:one_number', which made an array [2] of float64 of 2 values",
        "",
    ),
    "changing": (
        ("--column", "title", "--encoder", "own_encoders:changing"),
        "which made vectors of 2 and of 1 numbers; they need one length",
        "",
    ),
    "too large": (
        ("--column", "title", "--encoder", "own_encoders:too_large", "--precision", "half"),
        "which made 1000000.0 of 'Toy Story (1995)'; float16 has no such number",
        "",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_input_is_one_line(tmp_path, capfd, fault):
    words, *parts = WRONG[fault]
    data = write(tmp_path / "data")
    words = [data if word == "HERE" else word for word in words]
    out = [] if "--out" in words else ["--out", tmp_path / "out"]
    embed("--source", data, *words, *out, code=2)
    message = capfd.readouterr().err
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert all(part in message for part in parts), message
    whole = ["items.parquet"] if fault == "changing" else []  # a fault of the second file leaves the first
    assert [one.name for one in tmp_path.glob("out/**/*.parquet")] == whole


def test_files_of_one_name_keep_their_directories(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"title": ["x"]}), tmp_path / name / "rows.parquet")
    embed(
        "--source",
        tmp_path / "a/rows.parquet",
        tmp_path / "b/rows.parquet",
        "--column",
        "title",
        "--out",
        tmp_path / "o",
    )
    assert sorted(str(one.relative_to(tmp_path / "o")) for one in tmp_path.glob("o/**/*.parquet")) == [
        "a/rows.parquet",
        "b/rows.parquet",
    ]
