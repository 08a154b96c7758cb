"""A topic with a producer that never stops, whose events follow from their numbers, and what the log has of them.

Each event is a record, with its number as the key. Some records have no value (tombstones), some cannot be read
(poison), some have an earlier event time than those before.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from forked import ForkedProcess, start_forked
from kafka_broker import Broker

TOPIC = "events"
PARTITIONS = 3
BEGAN = 1_790_000_000.0  # event time of event 0, in seconds since 1970
SPARSE = 6
MOST_ROWS = 4  # in a record of Arrow
COLUMNS = {
    "row_id": "int64",
    "happened": "float64",
    "d0": "float32",
    "d1": "float32",
    **{f"s{i}": "int64" for i in range(SPARSE)},
    "label": "float32",
}
SCHEMA = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in COLUMNS.items()])
AVRO = {
    "type": "record",
    "name": "event",
    "fields": [
        {"name": name, "type": {"int64": "long", "float64": "double", "float32": "float"}[kind]}
        for name, kind in COLUMNS.items()
    ],
}
BURST = 40  # largest number of events between two pauses
RECORDS = 160  # of a segment
AHEAD = 10  # segments that the slowest run is not trained on, from which the producer is in less of a hurry
SLOWER = 20
READ_SECONDS = 240.0
LINGER_MS = 1000  # for batches of some size, each of which is a file on the server with the broker's log
# Of a producer that loses nothing, however long its broker is away, and sends again what is not confirmed. Not of an
# idempotent one: after a restart, this broker confirms batches of such a producer that it does not keep.
PATIENT = {
    "acks": "all",
    "max.in.flight.requests.per.connection": 1,
    "message.timeout.ms": 600_000,
    "request.timeout.ms": 5_000,
    "reconnect.backoff.max.ms": 300,
}


@dataclass(frozen=True)
class Event:
    """An event, by its number."""

    number: int

    @property
    def is_tombstone(self) -> bool:
        """Whether its record has no value."""
        return self.number % 97 == 13

    @property
    def is_poison(self) -> bool:
        """Whether its record cannot be read."""
        return self.number % 151 == 31 and not self.is_tombstone

    def rows(self, format: str) -> list[dict[str, Any]]:
        """Returns its rows: none of a tombstone or poison, several of Arrow."""
        if self.is_tombstone or self.is_poison:
            return []
        random = np.random.default_rng(self.number)
        return [self._row(i, random) for i in range(1 + self.number % MOST_ROWS if format == "arrow" else 1)]

    def _row(self, place: int, random: np.random.Generator) -> dict[str, Any]:
        d0, d1 = (float(value) for value in random.standard_normal(2).astype(np.float32))
        sparse = {f"s{i}": int(random.integers(0, 100 + i)) for i in range(SPARSE)}
        late = 500.0 if self.number % 89 == 7 else 0.0
        logit = d0 - 0.5 * d1 + 0.02 * (sparse["s0"] - 50)
        return {
            "row_id": (self.number + 1) * MOST_ROWS + place,  # not 0, which fills up a short batch
            "happened": BEGAN + self.number * 0.5 - late,
            "d0": d0,
            "d1": d1,
            **sparse,
            "label": float(random.random() < 1 / (1 + np.exp(-logit))),
        }

    def value(self, format: str) -> bytes | None:
        """Returns the value of its record."""
        if self.is_tombstone:
            return None
        if self.is_poison:
            return b"\xff\xfe no event"
        rows = self.rows(format)
        if format == "json":
            return json.dumps(rows[0]).encode()
        if format == "avro":
            return avro_bytes(rows[0])
        sink = pa.BufferOutputStream()
        table = pa.Table.from_pylist(rows, SCHEMA)
        with pa.ipc.new_stream(sink, SCHEMA) as stream:
            stream.write_table(table)
        return sink.getvalue().to_pybytes()


def avro_bytes(row: dict[str, Any]) -> bytes:
    """Returns a row as Avro, without a schema."""
    import io

    import fastavro

    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), row)
    return sink.getvalue()


def produce(address: str, format: str, seed: int, pause: float, confirmed: str, ledgers: Sequence[str]) -> None:
    """Writes events to partitions at random, in bursts, until SIGTERM.

    On a machine with other work, trainers may be slower than it. Then it writes less often, as each record that this
    broker has makes it slower.

    Args:
        address: Of the broker.
        format: As in data.stream.
        seed: Of the partitions and bursts.
        pause: Mean time between two bursts, in seconds.
        confirmed: File that gets a line for each event that the broker has confirmed: number, partition, offset.
        ledgers: Files of the runs with a line for each segment that is trained on.
    """
    from confluent_kafka import Producer

    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    random = np.random.default_rng(seed)
    producer = Producer({"bootstrap.servers": address, "linger.ms": LINGER_MS, "log_level": 0, **PATIENT})
    number = 0
    with open(confirmed, "w", buffering=1) as file:

        def on_delivery(error: object, record: Any) -> None:
            if error:
                print(f"event {record.key().decode()}: {error}", flush=True)
                os._exit(1)
            file.write(f"{int(record.key())} {record.partition()} {record.offset()}\n")

        while not stopped:
            for _ in range(int(random.integers(1, BURST))):
                event = Event(number)
                producer.produce(
                    TOPIC,
                    key=str(number),
                    value=event.value(format),
                    partition=int(random.integers(PARTITIONS)),
                    on_delivery=on_delivery,
                )
                number += 1
            producer.poll(0)
            is_ahead = number > (min(map(_trained_on, ledgers)) + AHEAD) * RECORDS
            time.sleep(pause * random.exponential() * (SLOWER if is_ahead else 1))
        left = producer.flush(READ_SECONDS)
    print(f"{number} events, {left} not confirmed", flush=True)
    os._exit(1 if left else 0)


def _trained_on(ledger: str) -> int:
    """Returns the number of segments that a run is done with."""
    return Path(ledger).read_text().count("\n") if Path(ledger).exists() else 0


class Producer:
    """The producer in a process of its own.

    Args:
        broker: Where it writes to.
        folder: For its files.
        format: As in data.stream.
        seed: As in `produce`.
        pause: As in `produce`.
        ledgers: As in `produce`.
    """

    def __init__(
        self, broker: Broker, folder: Path, format: str, seed: int, pause: float, ledgers: Sequence[Path]
    ) -> None:
        self._confirmed, self._output = folder / "confirmed.txt", folder / "producer.log"
        self._output.touch()
        words = (broker.address, format, seed, pause, str(self._confirmed), [*map(str, ledgers)])
        self._process: ForkedProcess = start_forked(
            produce, *words, environment=dict(os.environ), output=self._output, errors=self._output
        )

    def check(self) -> None:
        """Checks that it still runs."""
        assert self._process.poll() is None, self._output.read_text()

    def stop(self) -> None:
        """Ends it, once all of its events are confirmed."""
        self.check()
        self._process.terminate()
        assert self._process.wait(2 * READ_SECONDS) == 0, self._output.read_text()

    def kill(self) -> None:
        """Kills it, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(READ_SECONDS)

    def confirmed(self) -> dict[int, tuple[int, int]]:
        """Returns the partition and offset of each event that was confirmed, by number."""
        lines = (map(int, line.split()) for line in self._confirmed.read_text().splitlines())
        return {number: (partition, offset) for number, partition, offset in lines}


@dataclass(frozen=True)
class Record:
    """A record of the log."""

    partition: int
    offset: int
    number: int
    time: int
    size: int | None

    @cached_property
    def event(self) -> Event:
        """Its event."""
        return Event(self.number)


class Log:
    """All records of the topic, as a plain consumer reads them.

    Args:
        broker: Has the topic.

    Attributes:
        records: By partition, in the order of offsets.
    """

    def __init__(self, broker: Broker) -> None:
        self.records: dict[int, list[Record]] = {partition: [] for partition in range(PARTITIONS)}
        for record in _read(broker):
            self.records[record.partition].append(record)

    def __iter__(self) -> Iterator[Record]:
        for records in self.records.values():
            yield from records

    def between(self, partition: int, start: int, end: int) -> list[Record]:
        """Returns the records at the offsets of a range."""
        return [one for one in self.records[partition] if start <= one.offset < end]


def _read(broker: Broker) -> Iterator[Record]:
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    options = {"bootstrap.servers": broker.address, "group.id": "counts", "enable.partition.eof": True}
    consumer = Consumer({**options, "enable.auto.commit": False, "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    ended, deadline = set[int](), time.monotonic() + READ_SECONDS
    while len(ended) < PARTITIONS:
        assert time.monotonic() < deadline, f"read the ends of partitions {ended} only"
        for found in consumer.consume(1000, 0.5):
            if not found.error():
                value = found.value()
                size = None if value is None else len(value)
                yield Record(found.partition(), found.offset(), int(found.key()), found.timestamp()[1], size)
            elif found.error().code() == KafkaError._PARTITION_EOF:
                ended.add(found.partition())
            else:
                raise AssertionError(found.error())
    consumer.close()


def table_of(records: Sequence[Record], format: str, schema: pa.Schema) -> pa.Table:
    """Returns the rows that a segment has for records, made from their numbers."""
    rows = [
        row | {"_partition": one.partition, "_offset": one.offset, "_time": one.time}
        for one in records
        for row in one.event.rows(format)
    ]
    return pa.Table.from_pylist(rows, schema)
