"""Values of JSON, Avro and Arrow IPC as columns: the same rows as in a table, or one reason for each other value."""

import datetime as dt
import json
import sys
import threading
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pyarrow as pa
import pytest
from ports import free_port
from stream_values import arrow_value, avro_config, avro_values, header, json_value, stream_config

from trainer.core.errors import InputError, StorageError
from trainer.data.stream.decode import Unreadable, make_decoder
from trainer.data.stream.manifest import LOG_FIELDS

CASES = 60
UTC = dt.UTC
START = dt.datetime(2020, 1, 1, tzinfo=UTC)
# Of each kind: its Arrow type, its name in data.stream.columns, its Avro type, and a value from a random generator.
KINDS = {
    "long": (pa.int64(), "int64", "long", lambda r: int(r.integers(-(2**62), 2**62))),
    "int": (pa.int32(), "int32", "int", lambda r: int(r.integers(-(2**31), 2**31))),
    "double": (pa.float64(), "double", "double", lambda r: float(r.standard_normal())),
    "float": (pa.float32(), "float32", "float", lambda r: float(np.float32(r.standard_normal()))),
    "boolean": (pa.bool_(), "bool", "boolean", lambda r: bool(r.integers(2))),
    "text": (
        pa.string(),
        "string",
        "string",
        lambda r: r.choice(["", "a b", 'ü€"\\\n\t', "2020-01-01", "{}", "x" * 300]),
    ),
    "moment": (
        pa.timestamp("ms", "UTC"),
        "timestamp[ms, UTC]",
        {"type": "long", "logicalType": "timestamp-millis"},
        lambda r: START + dt.timedelta(milliseconds=int(r.integers(10**12))),
    ),
    "local": (
        pa.timestamp("us"),
        "timestamp[us]",
        {"type": "long", "logicalType": "local-timestamp-micros"},
        lambda r: dt.datetime(2020, 1, 1) + dt.timedelta(microseconds=int(r.integers(10**15))),
    ),
    "day": (
        pa.date32(),
        "date32",
        {"type": "int", "logicalType": "date"},
        lambda r: dt.date(2020, 1, 1) + dt.timedelta(int(r.integers(10**4))),
    ),
    "price": (
        pa.decimal128(12, 3),
        "decimal128(12, 3)",
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3},
        lambda r: Decimal(int(r.integers(-(10**6), 10**6))).scaleb(-3),
    ),
}


def random_table(seed, only=KINDS, rows=None):
    """Returns a table with random columns, some of them lists, with nulls, and the kinds of its columns."""
    random = np.random.default_rng(seed)
    rows = int(random.integers(1, 40)) if rows is None else rows
    columns, kinds = {}, {}
    for number, kind in enumerate(random.choice(list(only), random.integers(1, 9))):
        is_list, draw, nulls = bool(random.integers(2)), only[kind][3], random.random() < 0.6

        def value(is_list=is_list, draw=draw, nulls=nulls):
            if nulls and random.random() < 0.3:
                return None
            return [draw(random) for _ in range(random.integers(4))] if is_list else draw(random)

        name = f"{kind} {number}" if seed % 2 else f"c_{number}"
        dtype = pa.list_(only[kind][0]) if is_list else only[kind][0]
        columns[name], kinds[name] = pa.array([value() for _ in range(rows)], dtype), (kind, is_list)
    return pa.table(columns), kinds, random


def json_columns(kinds):
    return {name: f"list<{KINDS[kind][1]}>" if is_list else KINDS[kind][1] for name, (kind, is_list) in kinds.items()}


def avro_schema(kinds):
    def of(kind, is_list):
        return {"type": "array", "items": KINDS[kind][2]} if is_list else KINDS[kind][2]

    fields = [{"name": name, "type": ["null", of(*kind)]} for name, kind in kinds.items()]
    return {"type": "record", "name": "Click", "fields": fields}


def made(format, seed, folder):
    """Returns random rows as a table and as values, and their decoder."""
    seed = seed * 2 if format == "avro" else seed  # names in Avro have no blanks
    table, kinds, random = random_table(seed)
    if format == "json":
        values = [json_value(row) for row in table.to_pylist()]
        return table, values, make_decoder(stream_config(columns=json_columns(kinds)), None, values), random
    if format == "avro":
        # Without it, values of a few nulls could be read with and without a header.
        table = table.append_column("mark", pa.array([f"mark {number}" for number in range(len(table))]))
        schema = avro_schema(kinds | {"mark": ("text", False)})
        values = avro_values(schema, table.to_pylist(), header(7) if seed % 4 else b"")
        return table, values, make_decoder(avro_config(folder, schema), None), random
    cuts = sorted(random.integers(0, len(table) + 1, 3).tolist())
    parts = [table[a:b] for a, b in zip([0, *cuts], [*cuts, len(table)], strict=True)]
    values = [arrow_value(part.select(random.permutation(table.column_names).tolist())) for part in parts]
    table = table.select(list(pa.ipc.open_stream(values[0]).schema.names))
    return table, values, make_decoder(stream_config("arrow"), None, values), random


@pytest.mark.parametrize("format", ["json", "avro", "arrow"])
def test_values_decode_to_the_rows_that_were_written(format, tmp_path):
    for seed in range(CASES):
        table, values, decoder, random = made(format, seed, tmp_path)
        found = decoder.decode(values)
        found.table.validate(full=True)
        assert found.table.equals(table)
        assert found.rows.sum() == len(table)
        some = random.permutation(table.column_names)[: random.integers(1, table.num_columns + 1)].tolist()
        assert decoder.decode(values, some).table.select(some).equals(table.select(some))
        again = make_decoder(decoder_config(format, tmp_path), pa.schema([*decoder.schema, *LOG_FIELDS]))
        assert again.decode(values).table.equals(table)


def decoder_config(format, folder):
    """Returns the section of a job that reads what another has cut."""
    return stream_config(format, **({"schema_file": str(folder / "schema.avsc")} if format == "avro" else {}))


BROKEN = {
    "json": [b"", b"null", b"[1]", b"7", b'"x"', b"{", b"{}{}", b"{} x", b'{"a": 1}\0', b'{"\xff": 1}', b'{"a":01}'],
    "avro": [b"", b"\xff" * 12, b"\2"],
    "arrow": [b"", b"x", b"ARROW1\0\0"],
}


@pytest.mark.parametrize("format", ["json", "avro", "arrow"])
def test_values_that_cannot_be_read_are_found_wherever_they_are(format, tmp_path):
    for seed in range(CASES):
        _, values, decoder, random = made(format, seed, tmp_path)
        whole = decoder.decode(values)
        ends = np.cumsum(whole.rows).tolist()
        readable = [whole.table[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        torn = [value + b"\1" for value in values[:2]] + [value[: len(value) // 2] for value in values[:2]]
        bad = [one for one in [*BROKEN[format], *torn] if len(decoder.decode_readable([one]).faults)]
        assert {*BROKEN[format]} <= {*bad}
        mixed = [(value, table) for value, table in zip(values, readable, strict=True)]
        for one in random.permutation(len(bad))[: random.integers(1, 6)]:
            mixed.insert(int(random.integers(len(mixed) + 1)), (bad[one], None))
        found = decoder.decode_readable([value for value, _ in mixed])
        assert [fault.place for fault in found.faults] == [n for n, (_, table) in enumerate(mixed) if table is None]
        assert found.rows.tolist() == [0 if table is None else table.num_rows for _, table in mixed]
        assert found.table.equals(pa.concat_tables([table for _, table in mixed if table is not None]))
        assert all(fault.reason and "\n" not in fault.reason for fault in found.faults)
        with pytest.raises(Unreadable) as error:
            decoder.decode([value for value, _ in mixed])
        assert error.value.place == found.faults[0].place


JSON_TYPES = {
    "u": "int64", "small": "int8", "big": "uint64", "d": "double", "f": "float32", "s": "string", "b": "bool",
    "t": "timestamp[ms, UTC]", "n": "timestamp[s]", "day": "date32", "l": "list<int64>", "p": "decimal128(5, 2)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"u": "1"}', "column 'u' has a string"),
        ('{"u": 1.0}', "column 'u' has a number"),
        ('{"u": 1e3}', "column 'u' has a number"),
        ('{"u": true}', "column 'u' has a truth value"),
        ('{"u": 9223372036854775808}', "column 'u' has an integer that does not fit"),
        ('{"small": 128}', "column 'small' has an integer that does not fit"),
        ('{"big": -1}', "column 'big' has an integer that does not fit"),
        ('{"d": "1.5"}', "column 'd' has a string"),
        ('{"d": true}', "column 'd' has a truth value"),
        ('{"f": 1e39}', "column 'f' has a number that does not fit"),
        ('{"s": 1}', "column 's' has an integer"),
        ('{"s": {"a": 1}}', "column 's' has an object"),
        ('{"b": 1}', "column 'b' has an integer"),
        ('{"b": "true"}', "column 'b' has a string"),
        ('{"t": 1600000000}', "column 't' has an integer"),
        ('{"t": "2020-01-01T00:00:00"}', "column 't' has a string that is no time with a zone"),
        ('{"t": "2020-01-01T00:00:00.1234Z"}', "column 't' has a string that is no time with a zone"),
        ('{"n": "2020-01-01T00:00:00+02:00"}', "column 'n' has a string that is no time without a zone"),
        ('{"day": 1}', "column 'day' has an integer"),
        ('{"day": "1.1.2020"}', "column 'day' has a string that is no date"),
        ('{"l": 1}', "column 'l' has an integer"),
        ('{"l": [1, "2"]}', "column 'l' has a string"),
        ('{"l": [[1]]}', "column 'l' has a list"),
        ('{"p": 1.234}', "scale"),
        ('{"u": 1, "u": 1}', "field 'u' is there twice"),
        ('{"new": {"u": 1, }}', "it is no object of JSON"),
        ('{"u": 1}\n{"u": 2}', "it is no object of JSON"),
        ('{"s": "a\nb"}', "it is no object of JSON"),
        ("\ufeff{}", "it is no object of JSON"),
        ('{"s": "\\ud800"}', "surrogate"),
    ],
)  # fmt: skip
def test_no_value_of_json_is_converted_to_the_type_of_its_column(value, reason):
    decoder = make_decoder(stream_config(columns=JSON_TYPES), None, [b"{}"])
    found = decoder.decode_readable([b'{"u": 1}', value.encode(), b'{"u": 2}'])
    assert [fault.place for fault in found.faults] == [1]
    assert reason in found.faults[0].reason
    assert found.table["u"].to_pylist() == [1, 2]


def test_values_of_json_are_read_as_python_reads_them():
    decoder = make_decoder(stream_config(columns=JSON_TYPES), None, [b"{}"])
    rows = [
        {"u": -(2**63), "big": 2**64 - 1, "d": 1, "f": 0.5, "s": "2020-01-01T00:00:00Z", "l": [1, None]},
        {"u": 2**63 - 1, "d": 1e300, "l": [], "s": "\0\u2028", "b": False},
        {"d": 5e-324, "l": None},
    ]
    pretty = [json.dumps(row, indent=1).replace("\n", "\r\n").encode() + b" \n" for row in rows]
    found = decoder.decode(pretty).table.to_pylist()
    assert found == [dict.fromkeys(JSON_TYPES) | row for row in rows]
    times = decoder.decode([b'{"t": "2020-01-01T02:00:00+02:00", "n": "2020-01-01 00:00:01", "day": "2020-01-01"}'])
    assert times.table["t"][0].as_py() == START
    assert times.table["n"][0].as_py() == dt.datetime(2020, 1, 1, 0, 0, 1)


def test_columns_of_json_get_their_types_from_the_first_records():
    values = [
        b'{"u": 1, "t": "2020-01-01", "x": 1, "l": [], "none": null, "o": {"a": 1}, "ll": [[1]], "_offset": 5}',
        b"no JSON",
        b'{"u": 2, "x": 0.5, "l": [1, 2.5], "b": true, "h": 18446744073709551615, "empty": []}',
        b'{"u": "late"}',
    ]
    decoder = make_decoder(stream_config(columns={"b": "bool", "more": "string"}), None, values)
    assert dict(zip(decoder.schema.names, decoder.schema.types, strict=True)) == {
        "b": pa.bool_(),
        "more": pa.string(),
        "u": pa.int64(),
        "t": pa.string(),
        "x": pa.float64(),
        "l": pa.list_(pa.float64()),
        "h": pa.uint64(),
    }
    assert sorted(decoder.left_out) == ["_offset", "empty", "ll", "none", "o"]
    assert [fault.place for fault in decoder.decode_readable(values).faults] == [1, 3]


def test_new_fields_of_json_are_left_out_and_named():
    decoder = make_decoder(stream_config(), None, [b'{"u": 1}'])
    assert not decoder.left_out
    values = [b'{"u": 1}'] * 500 + [b'{"u": 2, "new": "x"}'] + [b'{"u": 1, "new": 5}'] * 500
    assert decoder.decode(values).table.num_rows == 1001
    assert list(decoder.left_out) == ["new"]
    decoder.decode([b'{"u": 1, "newer": 5}'] * 100)
    assert list(decoder.left_out) == ["new", "newer"]
    for number in range(300):
        decoder.decode_readable([b'{"u": 1, "n%d": 5}' % number])
    assert len(decoder.left_out) == 100


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"columns": {"u": "int65"}}, "data.stream.columns.u is 'int65'"),
        ({"columns": {"u": "list<list<int64>>"}}, "data.stream.columns.u is 'list<list<int64>>'"),
        ({"columns": {"u": "time32[s]"}}, "data.stream.columns.u is 'time32[s]'"),
        ({"columns": {"_offset": "int64"}}, "data.stream.columns has '_offset'"),
        ({}, "no record has a field of a plain value"),
    ],
)
def test_columns_that_json_cannot_have_are_refused(changes, reason):
    with pytest.raises(InputError, match=reason.replace("[", r"\[")):
        make_decoder(stream_config(**changes), None, [b'{"o": {}}', b""])


AVRO = {
    "type": "record",
    "name": "Click",
    "namespace": "shop",
    "fields": [
        {"name": "user", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["view", "buy"]}},
        {"name": "before", "type": ["null", "Kind"]},
        {"name": "scores", "type": {"type": "map", "values": "float"}},
        {"name": "digest", "type": {"type": "fixed", "name": "Digest", "size": 4}},
        {"name": "raw", "type": "bytes"},
        {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "int"}]}},
        {"name": "either", "type": ["int", "string"]},
        {"name": "none", "type": "null"},
        {"name": "deep", "type": {"type": "array", "items": {"type": "array", "items": "int"}}},
        {"name": "_time", "type": "long"},
    ],
}
AVRO_ROW = {
    "user": 5, "kind": "buy", "before": None, "scores": {"a": 0.5}, "digest": b"1234", "raw": b"\xff\0",
    "clock": dt.time(1, 2, 3), "place": {"x": 1}, "either": "s", "none": None, "deep": [[1]], "_time": 1,
}  # fmt: skip


def test_types_of_avro(tmp_path):
    decoder = make_decoder(avro_config(tmp_path, AVRO), None)
    assert dict(zip(decoder.schema.names, decoder.schema.types, strict=True)) == {
        "user": pa.int64(),
        "kind": pa.string(),
        "before": pa.string(),
        "scores": pa.map_(pa.string(), pa.float32()),
        "digest": pa.binary(4),
        "raw": pa.binary(),
        "clock": pa.time32("ms"),
    }
    assert sorted(decoder.left_out) == ["_time", "deep", "either", "none", "place"]
    found = decoder.decode(avro_values(AVRO, [AVRO_ROW] * 3)).table.to_pylist()[2]
    assert found == {name: AVRO_ROW[name] for name in decoder.schema.names} | {"scores": [("a", 0.5)]}


def test_a_value_of_avro_that_may_have_a_header_or_not_is_read_as_the_others_are(tmp_path):
    schema = record(raw="bytes", more="bytes")
    decoder = make_decoder(avro_config(tmp_path, schema), None)
    # `raw` is empty and `more` has 7 bytes; without the first five bytes, both have one byte.
    both, bare = b"\0\x0e\0\0\0\2a\2b", b"\2a\2b"
    for values, expected in (
        ([bare, both], [{"raw": b"a", "more": b"b"}, {"raw": b"", "more": both[2:]}]),
        ([header(3) + bare + b"", both], [{"raw": b"a", "more": b"b"}] * 2),
    ):
        assert decoder.decode(values).table.to_pylist() == expected
    many = [bare] * 3000 + [both]
    assert decoder.decode(many).table.to_pylist()[-1] == {"raw": b"", "more": both[2:]}
    for values in ([both, both], [both, bare, header(3) + bare], [both, *many, header(3) + bare]):
        found = decoder.decode_readable(values)
        assert [fault.place for fault in found.faults if "with and without the five bytes" in fault.reason] == [
            place for place, value in enumerate(values) if value is both
        ]


class Registry:
    """A schema registry, for a test."""

    def __init__(self, schemas):
        self.port, self.asked, self.codes = free_port(), [], []
        registry = self

        class Answers(BaseHTTPRequestHandler):
            def do_GET(self):
                registry.asked.append((self.path, self.headers.get("Authorization")))
                found = schemas.get(self.path.removeprefix("/schemas/ids/"))
                code = registry.codes.pop(0) if registry.codes else 200 if found else 404
                self.send_response(code)
                self.end_headers()
                if code == 200:
                    self.wfile.write(json.dumps({"schema": json.dumps(found)}).encode())

            def log_message(self, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", self.port), Answers)
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


def record(**fields):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": dtype} for name, dtype in fields.items()]}


@pytest.fixture
def registry():
    found = Registry(
        {
            "1": record(user="long", item="int"),
            "2": record(item="int", extra="string", user="long"),
            "3": record(user="string", item="int"),
            "4": record(user="int"),
        }
    )
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_values_are_read_by_the_schema_that_they_were_written_with(registry, tmp_path):
    values = [
        *avro_values(record(user="long", item="int"), [{"user": 1, "item": 2}], header(1)),
        *avro_values(record(item="int", extra="string", user="long"), [{"user": 3, "item": 4, "extra": ""}], header(2)),
        *avro_values(record(user="string", item="int"), [{"user": "5", "item": 6}], header(3)),
        *avro_values(record(user="int"), [{"user": 7}], header(4)),
        header(99) + b"\0",
        *avro_values(record(user="long", item="int"), [{"user": 1, "item": 2}]),
    ]
    decoder = make_decoder(stream_config("avro", registry=registry.url), None, values)
    found = decoder.decode_readable(values * 3)
    assert found.table.to_pylist()[:3] == [{"user": 1, "item": 2}, {"user": 3, "item": 4}, {"user": 7, "item": None}]
    assert found.rows.tolist() == [1, 1, 0, 1, 0, 0] * 3
    wrong, unknown, bare = (found.faults[place].reason for place in range(3))
    assert "its field 'user' is of type string" in wrong
    assert "there is no schema of that number" in unknown
    assert "five bytes" in bare
    assert "extra" in decoder.left_out
    assert len(registry.asked) == 5  # each number once
    (tmp_path / "own.avsc").write_text(json.dumps(record(user="double")))
    config = stream_config("avro", registry=registry.url, schema_file=str(tmp_path / "own.avsc"))
    found = make_decoder(config, None).decode_readable(values)
    assert found.table.to_pylist() == [{"user": 1.0}, {"user": 3.0}, {"user": 7.0}]
    assert found.rows.tolist() == [1, 1, 0, 1, 0, 0]


def test_a_registry_that_fails_is_asked_again_within_a_bound(registry):
    values = avro_values(record(user="long", item="int"), [{"user": 1, "item": 2}], header(1))
    registry.codes = [503, 500]
    url = registry.url.replace("//", "//me:secret%21@")
    assert make_decoder(stream_config("avro", registry=url), None, values).decode(values).table.num_rows == 1
    assert len(registry.asked) == 3
    assert registry.asked[0][1] == "Basic bWU6c2VjcmV0IQ=="
    registry.codes = [401]
    with pytest.raises(InputError, match="refuses access") as refused:
        make_decoder(stream_config("avro", registry=url), None, values)
    assert "secret" not in str(refused.value)
    registry.codes = [503] * 100
    with pytest.raises(StorageError, match=r"has not answered within data.stream.timeout_seconds \(1\): 503"):
        make_decoder(stream_config("avro", registry=url, timeout_seconds=1), None, values)


def test_avro_needs_its_package(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fastavro", None)  # an import of it fails
    for name in ("avro_values", "avro_types"):
        monkeypatch.delitem(sys.modules, f"trainer.data.stream.{name}", raising=False)
    with pytest.raises(InputError, match=r"needs the package fastavro; pip install 'torchx-recsys\[kafka\]'"):
        make_decoder(avro_config(tmp_path, AVRO), None)


def test_schema_files_that_cannot_be_used_are_refused(tmp_path):
    (tmp_path / "a.avsc").write_text("{")
    (tmp_path / "b.avsc").write_text('"string"')
    (tmp_path / "c.avsc").write_text('{"type": "record", "name": "R", "fields": [{"name": "x", "type": "lung"}]}')
    for name in "abcd":
        with pytest.raises(InputError, match=r"data.stream.schema_file is '.*avsc'"):
            make_decoder(stream_config("avro", schema_file=str(tmp_path / f"{name}.avsc")), None)
    config = avro_config(tmp_path, record(user="long"))
    with pytest.raises(InputError, match="column 'user' is of type string in the segment"):
        make_decoder(config, pa.schema([("user", pa.string())]))
    with pytest.raises(InputError, match="has no field of that name"):
        make_decoder(config, pa.schema([("item", pa.string())]))


def test_streams_of_arrow_have_the_columns_of_the_first():
    first = pa.table({"a": [1, 2], "b": ["x", "y"], "d": pa.array(["p", "q"]).dictionary_encode(), "s": [{"z": 1}] * 2})
    nulls = pa.table({"b": pa.nulls(1), "a": [3], "d": ["r"], "more": [0]})
    values = [
        arrow_value(first),
        arrow_value(nulls),
        arrow_value(first.drop(["b"])),
        arrow_value(first.set_column(0, "a", pa.array(["1", "2"]))),
        arrow_value(first[:0]),
        arrow_value(first) + b"more",
    ]
    decoder = make_decoder(stream_config("arrow"), None, values)
    assert decoder.schema == pa.schema([("a", pa.int64()), ("b", pa.string()), ("d", pa.string())])
    found = decoder.decode_readable(values)
    assert found.table.to_pydict() == {"a": [1, 2, 3], "b": ["x", "y", None], "d": ["p", "q", "r"]}
    assert found.rows.tolist() == [2, 1, 0, 0, 0, 0]
    assert [fault.place for fault in found.faults] == [2, 3, 5]
    assert sorted(decoder.left_out) == ["more", "s"]
