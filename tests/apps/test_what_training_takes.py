"""Whatever training takes, other programs take: bytes, UUIDs, strings that are not UTF-8, and large numbers."""

import json
import uuid
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from endpoint import Served
from exported import ONNX_ALONE, ask, export, parity_of
from jobs import config, launch
from predictions import read

from torchx_recsys.apps.export.load import ColumnError, load
from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.__main__ import main as trainer
from trainer.rules.plain_types import to_texts

ROWS = 200
WORDS = [b"ok", b"\xff\xfe", "ü".encode(), b"caf\xe9", b"", b"\x00\xc3", None]


def as_strings(values):
    """Strings of any bytes, which pyarrow writes and reads unchecked."""
    whole = pa.array(values, pa.large_binary())
    return pa.Array.from_buffers(pa.large_string(), len(whole), whole.buffers())


def write(folder):
    draw = np.random.default_rng(0)

    def some(number=ROWS):
        return [WORDS[place] for place in draw.integers(0, len(WORDS), number)]

    ends = np.append(0, np.cumsum(draw.integers(0, 4, ROWS)))
    uuids = [draw.bytes(16) for _ in range(9)]
    columns = {
        "binary": pa.array(some(), pa.binary()),
        "latin": as_strings(some()),
        "coded": as_strings(some()).dictionary_encode(),
        "fixed": pa.array([[b"ab", b"\xff\x00"][n] for n in draw.integers(0, 2, ROWS)], pa.binary(2)),
        "uuid": pa.array([uuids[n] for n in draw.integers(0, 9, ROWS)], pa.uuid()),
        "binaries": pa.LargeListArray.from_arrays(ends, pa.array(some(ends[-1]), pa.binary())),
        "latins": pa.LargeListArray.from_arrays(ends, as_strings(some(ends[-1]))),
        "listed": as_strings(some()),
        "amounts": pa.LargeListArray.from_arrays(ends, pa.array(draw.random(ends[-1]))),
        "price": pa.array(draw.random(ROWS)),
        "clicked": pa.array(draw.integers(0, 2, ROWS)),
    }
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=64)
    return [name for name in columns if name not in ("amounts", "price", "clicked")]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    names = write(folder / "data")
    vocabulary((str(folder / "data"),), ("listed",), str(folder / "vocabulary"))
    tree = config(folder / "data", data__validation=[str(folder / "data")], data__labels=["clicked"], train__steps=3)
    tree["data"] |= {"dense": {"price": {"mean": 0.5, "std": 0.1}}, "groups": ["uuid"]}
    tree["data"]["sparse"] = {name: {"rows": 50, "ids": "hash"} for name in names}
    tree["data"]["sparse"]["binary"]["ids"] = "managed"
    tree["data"]["sparse"]["binaries"]["weights"] = "amounts"
    of_list = {"ids": "vocabulary", "vocabulary": str(folder / "vocabulary/listed.parquet")}
    tree["data"]["sparse"]["listed"] |= of_list
    tree["data"]["sparse"]["crossed"] = {"columns": ["latin", "uuid"], "rows": 50, "ids": "hash"}
    tree["data"]["select"] = {"filter": [["latin", "!=", "no value"]]}  # by the bounds of row groups
    tree["model"] = {"name": "wide_deep", "embedding_dim": 4, "over_layers": [4]}
    launch([{"config": tree, "out": str(folder / "run")}], 1, folder)
    return folder


@pytest.fixture(scope="module")
def directory(runs):
    return export(runs, "run", runs / "exported")


@pytest.fixture(scope="module")
def predicted(runs):
    words = ["predict", runs / "run/config.toml", "--out", runs / "run", "--source", runs / "data"]
    assert trainer([*map(str, words), "--to", str(runs / "predicted")]) == 0
    return read(runs / "predicted")


def sent(table, directory):
    """The columns as JSON has them."""
    names = [column["name"] for column in json.loads((directory / "signature.json").read_text())["columns"]]
    plain = {name: table[name].combine_chunks() for name in names}
    plain["uuid"] = plain["uuid"].storage
    numbers = ("price", "amounts")
    return {name: to_texts(column) if name not in numbers else column.to_pylist() for name, column in plain.items()}


def test_answers_are_those_of_predictions(runs, directory, predicted):
    columns, expected = sent(predicted, directory), predicted["clicked_probability"].to_numpy()
    assert "\udcff\udcfe" in columns["latin"]
    assert np.ptp(expected) > 1e-3
    for one in (directory, export(runs, "run", runs / "shards", "--shard-bytes", "1000")):
        (found,) = ask((one, columns))
        np.testing.assert_allclose(found["clicked_probability"], expected, rtol=0, atol=1e-6)


@pytest.mark.sample(0)
def test_answers_in_onnx(runs, predicted):
    pytest.importorskip("onnxscript")
    directory = export(runs, "run", runs / "onnx", "--format", "onnx")
    (found,) = ask((directory, sent(predicted, directory)), without=ONNX_ALONE)
    np.testing.assert_allclose(found["clicked_probability"], predicted["clicked_probability"], rtol=0, atol=1e-6)


def test_in_python_they_are_bytes(directory):
    columns, model = parity_of(directory)["columns"], load(directory)
    expected = model(columns)["clicked_probability"]

    def as_bytes(value):
        return value.encode(errors="surrogateescape") if isinstance(value, str) else value

    values = {name: [as_bytes(one) for one in column] for name, column in columns.items()}
    assert b"caf\xe9" in values["latin"]
    assert model(values)["clicked_probability"].equal(expected)
    values["uuid"] = [uuid.UUID(bytes=one) for one in values["uuid"]]
    assert model(values)["clicked_probability"].equal(expected)
    with pytest.raises(ColumnError, match=r"column 'fixed', row 0: .* is not a string"):  # NumPy drops final zeros
        model(values | {"fixed": np.array(values["fixed"])})


@pytest.fixture(scope="module")
def served(directory, tmp_path_factory):
    served = Served(directory, tmp_path_factory.mktemp("served"))
    yield served
    served.process.kill()


def test_a_server_takes_them_and_refuses_half_a_character(directory, served):
    parity = parity_of(directory)
    columns = {name: values[:1] for name, values in parity["columns"].items()}
    bodies = [
        columns | {"latin": ["a\ud83d"]},
        columns | {"latins": [["ok", "\udfff"]]},
        columns | {"latin\ud800": ["ok"]},
    ]
    ((status, content), *wrong) = served.ask({"columns": parity["columns"]}, *({"columns": one} for one in bodies))
    assert status == 200, content
    np.testing.assert_allclose(content["outputs"]["clicked_probability"], parity["answers"]["clicked_probability"])
    assert [status for status, _ in wrong] == [400, 400, 400]
    assert [content["error"].partition(";")[0] for _, content in wrong] == [
        r"column 'latin', row 0: 'a\ud83d' is no text: '\ud83d' is half of a character",
        r"column 'latins', row 0: '\udfff' is no text: '\udfff' is half of a character",
        "column 'latin\ud800' is unknown",
    ]
    assert served.errors.read_text() == ""


def test_a_number_that_overflows_by_mean_and_std_is_refused_by_all(runs, directory, served, tmp_path, capfd):
    table = pq.read_table(runs / "data/part.parquet")
    price = table.schema.get_field_index("price")
    (tmp_path / "data").mkdir()
    pq.write_table(table.set_column(price, "price", pa.array([1e38] * ROWS)), tmp_path / "data/part.parquet")
    words = ["predict", runs / "run/config.toml", "--out", runs / "run", "--source", tmp_path / "data"]
    assert trainer([*map(str, words), "--to", str(tmp_path / "to")]) == 2
    assert "column 'price': 1e+38 has no finite value" in capfd.readouterr().err.replace(
        "9.999999680285692e+37", "1e+38"
    )
    columns = {name: values[:1] for name, values in parity_of(directory)["columns"].items()} | {"price": [1e38]}
    with pytest.raises(ColumnError, match=r"column 'price', row 0: 1e\+38 has no finite value"):
        load(directory)(columns)
    assert served.ask({"columns": columns})[0][0] == 400


def test_numbers_that_are_too_large_only_together_are_refused_by_the_server(directory, served):
    columns = {name: values[:2] for name, values in parity_of(directory)["columns"].items()}
    columns |= {"binaries": [["ok"], ["ok"] * 100], "amounts": [[1.0], [3e38] * 100]}
    ((status, content),) = served.ask({"columns": columns})
    assert (status, content["error"].partition(";")[0]) == (400, "row 1: clicked_probability is nan")
    assert served.errors.read_text() == ""


@pytest.mark.parametrize("words", [[], ["--all", "True", "--rows", "50"]], ids=["whole", "a sample"])
def test_they_are_checked(runs, tmp_path, words):
    files = ["--json", tmp_path / "checked.json", "--page", tmp_path / "page.html"]
    assert trainer(["check-data", str(runs / "run/config.toml"), *map(str, files), *words]) == 0
    report = json.loads((tmp_path / "checked.json").read_text())
    assert {name for name, one in report["columns"].items() if one["as"] == "sparse"} == {
        *("binary", "latin", "coded", "fixed", "uuid", "binaries", "latins", "listed")
    }
    assert {value for value, _ in report["columns"]["binary"]["top"]} <= {
        "ok",
        r"\xff\xfe",
        "ü",
        r"caf\xe9",
        "",
        "\0\\xc3",
    }
    broken = {one["column"] for one in report["findings"] if one["check"] == "broken text"}
    assert broken == {"latin", "coded", "latins", "listed"}  # no text is in binary columns


def test_a_first_configuration_has_them(runs, tmp_path):
    to = ["--write-config", str(tmp_path / "first.toml")]
    assert trainer(["check-data", "--source", str(runs / "data"), "--label", "clicked", *to]) == 0
    assert trainer(["train", str(tmp_path / "first.toml"), "--out", str(tmp_path / "run"), "--train.steps", "1"]) == 0


@pytest.mark.parametrize("table", ["binary", "latin", "listed"])
def test_their_vectors_are_written(runs, tmp_path, table):
    words = ["embed", runs / "run/config.toml", "--out", runs / "run", "--table", table, "--to", tmp_path]
    assert trainer([*map(str, words)]) == 0
    ids = read(tmp_path)
    if table == "listed":
        assert b"caf\xe9" in ids["id"].to_pylist()


def test_a_decimal_beyond_its_integers_is_refused_by_the_export(tmp_path, capfd):
    """Training hashes it, but an export takes the integers of 64 bits with a sign."""
    table = {"item": pa.array([Decimal(2**64 - 1 - n % 9) for n in range(ROWS)], pa.decimal128(20, 0))}
    table |= {"label": pa.array([n % 2 for n in range(ROWS)])}
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table(table), tmp_path / "data/part.parquet")
    tree = config(tmp_path / "data", data__validation=[str(tmp_path / "data")], train__steps=1)
    tree["data"] |= {"dense": {}, "sparse": {"item": {"rows": 50, "ids": "hash"}}}
    tree["model"] = {"name": "wide_deep", "embedding_dim": 4, "over_layers": [4]}
    launch([{"config": tree, "out": str(tmp_path / "run")}], 1, tmp_path)
    words = ["export", tmp_path / "run/config.toml", "--out", tmp_path / "run", "--to", tmp_path / "to"]
    assert trainer([*map(str, words)]) == 2
    assert "column 'item', row 0: 18446744073709551615 is not a number of type int64" in capfd.readouterr().err
