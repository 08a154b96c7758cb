"""Wrong inputs of a topic, of its segments and of whoever reads them: one line, which names what to correct."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from command import run_trainer
from cut_topics import TOPIC, click, manifests, stream_config
from kafka_broker import broker
from ports import free_port

SECONDS = 3.0


@dataclass
class Case:
    """What is wrong, and what the line has.

    Attributes:
        words: Texts that the line has.
        stream: Keys of data.stream.
        data: Keys of data.
        flags: Flags of the command.
        values: Values of more records, before the cut.
        segments: In place of the usual path of segments.
        before: Called with the folder before the cut.
        cuts: Segments that a first cut, with the usual keys, makes.
        code: The exit code; 1 for what may heal.
    """

    words: tuple[str, ...]
    stream: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    values: tuple[bytes, ...] = ()
    segments: str = ""
    before: Callable[..., None] = lambda folder: None
    cuts: int = 0
    code: int = 2


def written(name: str, text: str) -> Callable[..., None]:
    """Returns a function that writes a file."""

    def write(folder: Any) -> None:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    return write


def changed(**values: Any) -> Callable[..., None]:
    """Returns a function that changes the first manifest."""

    def change(folder: Any) -> None:
        file = folder / "stream" / "000000000000.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def moved(folder: Any) -> None:
    (folder / "stream" / "000000000001.json").unlink()


def torn(folder: Any) -> None:
    file = folder / "stream" / "000000000000.json"
    file.write_text(file.read_text()[:-100])


def ended(offset: int) -> Callable[..., None]:
    """Returns a function that ends the first manifest at another offset of partition 0."""

    def end(folder: Any) -> None:
        file = folder / "stream" / "000000000000.json"
        tree = json.loads(file.read_text())
        tree["partitions"]["0"] |= {"end": offset, "high": offset}
        file.write_text(json.dumps(tree))

    return end


AVRO = json.dumps({"type": "record", "name": "click", "fields": [{"name": "user", "type": "long"}]})
REST = ("--rest", "True")
CASES = {
    "no topic": Case(("data.stream.topic is 'klicks'", "did you mean"), {"topic": "klicks"}),
    "topic unset": Case(("data.stream.topic is not",), {"topic": None}),
    "section missing": Case(
        ("data.stream.topic is unset",), dict.fromkeys(("brokers", "topic", "timeout_seconds", "every_records"))
    ),
    "brokers unreachable": Case(
        ("data.stream.brokers is 'localhost:", "no broker has answered", "refused"),
        {"brokers": "localhost:{free}"},
        code=1,
    ),
    "brokers without a name": Case(
        ("data.stream.brokers is 'no.such.host:9092'",), {"brokers": "no.such.host:9092"}, code=1
    ),
    "not the reader": Case(("data.reader is 'parquet'", "'kafka'"), data={"reader": "parquet"}),
    "no path": Case(("data.segments.path is unset",), data={"segments": {}}),
    "path of a directory": Case(("data.segments.path is '", "{segment}.json"), segments="{folder}/stream/{{segment}}"),
    "path with a pattern": Case(("data.segments.path is '", "{segment}.json"), segments="{folder}/*/{{segment}}.json"),
    "no rule": Case(("data.stream.every_records", "marker", "set one"), {"every_records": None}),
    "two rules": Case(("data.stream.marker and data.stream.every_records are set",), {"marker": "end"}),
    "start is no time": Case(("data.stream.start is 'yesterday'", "2026-11-28T06:00:00Z"), {"start": "yesterday"}),
    "start in no zone": Case(("data.stream.start is", "zone"), {"start": "2025-11-24T16:00:30"}),
    "start in the future": Case(("data.stream.start is", "future"), {"start": "2100-01-01T00:00:00Z"}),
    "most of none": Case(("--most is 0",), flags=("--most", "0")),
    "the rest of no end": Case(("--rest is True", "--follow is True"), flags=("--rest", "True", "--follow", "True")),
    "the rest of markers": Case(
        ("--rest is True", "data.stream.marker"), {"marker": "end", "every_records": None}, flags=("--rest", "True")
    ),
    "unknown type": Case(("data.stream.columns.user", "int65"), {"columns": {"user": "int65"}}),
    "values of another format": Case(("data.stream.format", "json"), {"topic": "texts"}),
    "arrow of nothing": Case(("arrow",), {"format": "arrow"}),
    "poison": Case(
        (f"the record at offset 40 of partition 0 of topic '{TOPIC}'", "data.stream.poison"),
        values=(b"nothing",),
        flags=REST,
        cuts=1,
    ),
    "another type": Case(("offset 40 of partition 0", "user"), values=(click(1, user="x"),), flags=REST, cuts=1),
    "event time missing": Case(("data.stream.event_time is 'wen'", "did you mean 'when'"), {"event_time": "wen"}),
    "event time of text": Case(("data.stream.event_time is 'word'", "string"), {"event_time": "word"}),
    "avro without a schema": Case(("data.stream.format is 'avro'", "data.stream.registry"), {"format": "avro"}),
    "no schema file": Case(
        ("data.stream.schema_file", "missing.avsc"), {"format": "avro", "schema_file": "{folder}/missing.avsc"}
    ),
    "schema file of something else": Case(
        ("data.stream.schema_file",),
        {"format": "avro", "schema_file": "{folder}/live.avsc"},
        before=written("live.avsc", "[data]"),
    ),
    "json for avro": Case(
        ("cannot be read", "data.stream.poison"),
        {"format": "avro", "schema_file": "{folder}/live.avsc"},
        before=written("live.avsc", AVRO),
    ),
    "registry away": Case(
        ("data.stream.registry",), {"topic": "framed", "format": "avro", "registry": "http://localhost:{free}"}, code=1
    ),
    "no options": Case(("data.stream.options", "missing"), {"options": "{folder}/missing"}),
    "options of something else": Case(
        ("data.stream.options", "line 1"), {"options": "{folder}/options"}, before=written("options", "secret-word\n")
    ),
    "unknown option": Case(
        ("data.stream.options", "fetch.bytes"),
        {"options": "{folder}/options"},
        before=written("options", "fetch.bytes=7\n"),
    ),
    "an option that has a key": Case(
        ("data.stream.options", "data.stream.brokers"),
        {"options": "{folder}/options"},
        before=written("options", "# mine\nbootstrap.servers=a:1\n"),
    ),
    "a password for a broker that knows none": Case(
        ("data.stream.",),
        {"options": "{folder}/options"},
        before=written(
            "options",
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=me\nsasl.password=secret-word\n",
        ),
    ),
    "encryption for a broker without": Case(
        ("data.stream.brokers is '",),
        {"options": "{folder}/options"},
        before=written("options", "security.protocol=SSL\n"),
        code=1,  # such a broker ends the connection without a word
    ),
    "columns of other types": Case(
        ("data.stream.columns.user is 'int32'", "have int64"), {"columns": {"user": "int32"}}, cuts=1
    ),
    "a column that is new": Case(("data.stream.columns.more", "no such column"), {"columns": {"more": "bool"}}, cuts=1),
    "a file beside the manifests": Case(
        ("data.segments.path", "notes.json", "move it"), before=written("stream/notes.json", "{}")
    ),
    "a manifest is missing": Case(("data.segments.path", "000000000001.json", "put it back"), cuts=3, before=moved),
    "a manifest is torn": Case(("000000000000.json", "cannot be read"), cuts=1, before=torn),
    "a later version": Case(("000000000000.json", "version 2"), cuts=1, before=changed(version=2)),
    "segments of another topic": Case(
        ("data.stream.topic is 'clicks'", "'orders'"), cuts=1, before=changed(topic="orders")
    ),
    "segments of another cluster": Case(
        ("data.segments.path", "cluster 'other'"), cuts=1, before=changed(cluster="other")
    ),
    "segments of another format": Case(
        ("data.stream.format is 'json'", "'avro'"), cuts=1, before=changed(format="avro")
    ),
    "segments that do not follow": Case(
        ("000000000000.json", "000000000001.json", "offset 3 "), cuts=2, before=ended(3)
    ),
    "a topic that is made anew": Case(
        ("ends before offset 9,000 of partition 0", "data.segments.path"), cuts=1, before=ended(9000)
    ),
    "an archive that cannot be written": Case(
        ("data.stream.archive", "Not a directory"), {"archive": "{folder}/file/archive"}, before=written("file", "")
    ),
    "an archive of something else": Case(
        ("data.stream.archive", "of something else"),
        {"archive": "{folder}/archive"},
        before=written("archive/000000000000/mine.parquet", ""),
    ),
    "an archive with a password": Case(
        ("data.stream.archive", "environment"), {"archive": "ftp://me:secret-word@localhost/archive"}
    ),
}
SHARED = {"texts": b"nothing", "framed": b"\0\0\0\0\7\2"}
SHOWN = re.compile("secret-word|Traceback")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A broker with topics of one partition each."""
    with broker(tmp_path_factory.mktemp("broker")) as found:
        for name, value in SHARED.items():
            found.create(name, 1)
            found.produce(name, [{"partition": 0, "value": value}] * 40)
        yield found


@pytest.mark.sample(12)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_cutter_refuses_it_in_one_line(case, shared, tmp_path):
    with broker(tmp_path) as found:
        found.create(TOPIC, 1)
        values = [click(number, when=number) for number in range(40)]
        found.produce(TOPIC, ({"partition": 0, "value": value} for value in values))
        usual = {"every_records": 10, "timeout_seconds": SECONDS}
        if case.cuts:
            first = stream_config(tmp_path, found.address, **usual)
            done = run_trainer("cut-stream", first, "--most", case.cuts)
            assert done.returncode == 0, done.stderr
        found.produce(TOPIC, ({"partition": 0, "value": value} for value in case.values))
        case.before(tmp_path)
        address = found.address
        if case.stream.get("topic") in SHARED:
            address = shared.address
        stream = {
            key: value.format(folder=tmp_path, free=free_port()) if isinstance(value, str) else value
            for key, value in (usual | case.stream).items()
        }
        path = case.segments.format(folder=tmp_path)
        before = {name: one.cut_at for name, one in manifests(tmp_path).items()} if case.code == 1 else None
        file = stream_config(tmp_path, stream.pop("brokers", address), path, case.data, **stream)
        done = run_trainer("cut-stream", file, *case.flags)
    assert done.returncode == case.code, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for word in case.words:
        assert word in lines[0], lines[0]
    assert not SHOWN.search(done.stdout + done.stderr)
    assert before is None or before == {name: one.cut_at for name, one in manifests(tmp_path).items()}


def group_changed(**values: Any) -> Callable[..., None]:
    """Returns a function that changes the first row group of the first manifest."""

    def change(folder: Any) -> None:
        file = folder / "stream" / "000000000000.json"
        tree = json.loads(file.read_text())
        tree["groups"][0] |= values
        file.write_text(json.dumps(tree))

    return change


def copies_gone(folder: Any) -> None:
    shutil.rmtree(folder / "archive")


TRAINED = {
    "another topic": Case(("topic 'clicks'", "data.stream.topic is 'klicks'"), {"topic": "klicks"}),
    "brokers unreachable": Case(
        ("data.stream.brokers is 'localhost:", "no broker has answered"), {"brokers": "localhost:{free}"}, code=1
    ),
    "a manifest is torn": Case(("000000000000.json", "is it whole?"), before=torn),
    "a file beside the manifests": Case(("notes.json", "data.cut_stream"), before=written("stream/notes.json", "{}")),
    "other records": Case(
        ("000000000000.json", "partition 0, offsets 0 to 39", "others"), before=group_changed(crc32=7)
    ),
    "records beyond the end": Case(
        ("000000000000.json", "partition 0, offsets 900 to 939"), before=group_changed(start=900, end=940), code=1
    ),
    "a column that no record has": Case(
        ("000000000000.json", "no column 'usr'"), data={"sparse": {"usr": {"rows": 9, "dimension": 4}}}
    ),
    "copies are gone": Case(("its copy", "gone"), {"archive": "{folder}/archive"}, before=copies_gone),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", TRAINED.values(), ids=TRAINED)
def test_training_refuses_it_in_one_line(case, tmp_path):
    with broker(tmp_path) as found:
        found.create(TOPIC, 1)
        found.produce(TOPIC, ({"partition": 0, "value": click(number)} for number in range(40)))
        usual = {"every_records": 40, "timeout_seconds": SECONDS, "archive": case.stream.get("archive")}
        usual = {
            key: value.format(folder=tmp_path) if isinstance(value, str) else value for key, value in usual.items()
        }
        size = {"global_batch_size": 8}
        done = run_trainer("cut-stream", stream_config(tmp_path, found.address, data=size, **usual))
        assert done.returncode == 0, done.stderr
        case.before(tmp_path)
        stream = usual | {key: value.format(folder=tmp_path, free=free_port()) for key, value in case.stream.items()}
        address = stream.pop("brokers", found.address)
        file = stream_config(tmp_path, address, data=size | case.data, **stream)
        done = run_trainer("train", file, "--out", tmp_path / "run")
    assert done.returncode == case.code, done.stdout + done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.stderr
    for word in case.words:
        assert word in errors[0], errors[0]
    assert not SHOWN.search(done.stdout + done.stderr)
