"""Broken CSV: every kind ends with one line that names the file and the line."""

import gzip
import re

import pyarrow as pa
import pytest
from csv_files import csv_config, read_all

from trainer.core.errors import InputError

HEADER = "x,id,tags,label"
LINES = [HEADER, *[f"{n}.5,{n},{n}|{n + 1},{n % 2}" for n in range(60)]]  # about 6 blocks


def text(**changes: str) -> bytes:
    """Returns a good file, with other lines at places counted from 1."""
    lines = list(LINES)
    for place, line in changes.items():
        lines[int(place.removeprefix("line")) - 1] = line
    return ("\n".join(lines) + "\n").encode()


CASES = {
    "too few columns": (text(line40="1,2,3"), "line 40: 3 values between ',' (data.csv.delimiter), and there are 4"),
    "too many columns": (text(line40="1,2,3,1,5"), "line 40: 5 values between ','"),
    "too few columns at the end": (text() + b"1,2", "line 62: 2 values"),
    "quote that is never closed": (text(line60='"1,2,3,1'), "line 60: a quote is opened and never closed"),
    "quote that is never closed, early": (text(line4='1,"2,3,1'), "line 4: a row has more than the 200 bytes of"),
    "quote inside of a value": (text(line9='1,2,3"4,1', line12='1,2,3"4,1'), "line 9: a quote stands inside"),
    "text in a number": (text(line33="one,2,3,1"), "line 33, column 'x': 'one' is not a number; data.csv.nulls"),
    "boolean in a number": (text(line33="1,2,3,True"), "line 33, column 'label': 'True' is not a number"),
    "text in an id": (text(line61="1,abc,3,1"), "line 61, column 'id': 'abc' is not an integer of 64 bits; if"),
    "id too large": (text(line50="1,99999999999999999999,3,1"), "line 50, column 'id': '99999999999999999999' is"),
    "id with decimals": (text(line50="1,2.0,3,1"), "line 50, column 'id': '2.0' is not an integer"),
    "empty id in a list": (text(line18="1,2,3||4,1"), "line 18, column 'tags': '3||4' is not a list of integers"),
    "list with another separator": (text(line18="1,2,3 4,1"), "line 18, column 'tags': '3 4' is not a list"),
    "header lacks a column": (text(line1="x,id,label"), "line 1: the header has no column 'tags'; between ','"),
    "header has a column twice": (text(line1="x,id,tags,label,id"), "line 1: the header has column 'id' twice"),
    "no header": (text(line1="1.5,2,3,1"), "line 1: the header has no column 'x'; .* data.csv.header to false"),
    "wrong delimiter": (text().replace(b",", b";"), "line 1: the header has no column 'x'; .* x;id;tags;label"),
    "header that is not UTF-8": (text().replace(b"tags", b"t\xff"), "line 1: the header is not UTF-8 at byte 6"),
    "empty file": (b"", "line 1: there is no header"),
    "NUL byte": (text(line30="1,2,3\0,1"), "line 30: it has a NUL byte"),
    "UTF-16": (text().decode().encode("utf-16"), "line 1: it has a NUL byte"),
    "value that is not UTF-8": (text(line30="1,2,?,1").replace(b"?", b"\xe9\xe9"), "line 30, column 'tags': .* is not"),
    "row longer than a block": (text(line30=f"1,2,{'3|' * 200}3,1"), "line 30: a row has more than the 200 bytes"),
    "carriage return alone": (text(line30="1,2,3,1\r1,2,3,1"), "lines 28 to 39: .* rows by their quotes and newlines"),
}


def check(file, expected, config) -> None:
    with pytest.raises(InputError) as caught:
        read_all(file, config)
    message = str(caught.value)
    assert "\n" not in message
    where = re.escape(f"{file}, ") + ".*".join(re.escape(part) for part in expected.split(".*"))
    assert re.match(where, message), message


@pytest.fixture
def config(tmp_path):
    sparse = {"id": {"rows": 1000}, "tags": {"rows": 1000}}
    return csv_config(tmp_path / "cache", csv={"block_bytes": 200, "lists": ["tags"]}, sparse=sparse)


@pytest.mark.parametrize("pack", ["", ".gz"])
@pytest.mark.parametrize("kind", CASES)
def test_faults_are_named_with_their_line(tmp_path, config, kind, pack):
    content, expected = CASES[kind]
    file = tmp_path / f"a.csv{pack}"
    file.write_bytes(gzip.compress(content) if pack else content)
    check(file, expected, config)


def test_the_good_file_is_good(tmp_path, config):
    (tmp_path / "a.csv").write_bytes(text())
    assert read_all(tmp_path / "a.csv", config)["tags"].to_pylist()[5] == [5, 6]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv.gz", gzip.compress(text())[:-20], "Truncated compressed stream"),
        ("a.csv.zst", pa.compress(text(), "zstd", asbytes=True)[:-20], "Truncated compressed stream"),
        ("a.csv.gz", text(), "incorrect header check"),
        ("a.csv.zst", text(), "Unknown frame descriptor"),
    ],
)
def test_compressed_files_that_are_not_whole(tmp_path, config, name, content, reason):
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"{name}: cannot be read as CSV, is it whole\? \(.*{reason}"):
        read_all(file, config)
    assert not list(tmp_path.rglob("*.partial"))


def test_only_a_header(tmp_path, config):
    (tmp_path / "a.csv").write_text(f"{HEADER}\n")
    with pytest.raises(InputError, match=r"data\.train has no rows in its 1 file \(.*a\.csv"):
        read_all(tmp_path / "a.csv", config)
    (tmp_path / "b.csv").write_bytes(text())
    assert read_all(tmp_path, config).num_rows == 60


def test_columns_of_the_configuration_that_the_file_does_not_have(tmp_path):
    (tmp_path / "a.csv").write_text("1,2,1\n")
    settings = {"header": False, "columns": ["x", "id", "label", "more"]}
    with pytest.raises(InputError, match=r"a\.csv, line 1: 3 values between ','.* there are 4 columns"):
        read_all(tmp_path, csv_config(tmp_path / "cache", csv=settings))
    settings = {"header": False, "columns": ["x", "id", "click"]}
    with pytest.raises(InputError, match=r"data\.csv\.columns has no column 'label', which is read; it has: x, id"):
        read_all(tmp_path, csv_config(tmp_path / "cache", csv=settings))
