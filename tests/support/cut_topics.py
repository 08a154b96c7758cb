"""Topics, configurations that cut them, and a check that each record is in exactly one segment, by another reader."""

import json
import signal
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq
from command import run_trainer, start_trainer, write_config

from trainer.data.stream.manifest import Manifest

TOPIC = "clicks"
BEGAN = 1_764_000_000_000  # milliseconds since 1970
READ_SECONDS = WAIT_SECONDS = 60.0


@dataclass(frozen=True)
class Logged:
    """A record as the log has it."""

    time: int
    key: bytes | None
    value: bytes | None


def click(number: int, **other: Any) -> bytes:
    """Returns the value of a record."""
    return json.dumps({"label": number % 2, "user": number, "word": f"w{number % 7}", **other}).encode()


def clicks(numbers: Iterable[int], partitions: int = 3) -> Iterable[dict[str, Any]]:
    """Returns records, spread over partitions; every tenth is a tombstone."""
    for number in numbers:
        value = click(number) if number % 10 else None
        yield {"partition": number % partitions, "value": value, "timestamp": BEGAN + 1000 * number}


def stream_config(
    folder: Path, address: str, segments: str = "", data: Mapping[str, Any] | None = None, **stream: Any
) -> Path:
    """Writes a configuration that cuts the topic into `FOLDER/stream`; a key that is None is left out."""
    section = {"brokers": address, "topic": TOPIC, "timeout_seconds": 20.0} | stream
    tree = {
        "reader": "kafka",
        "labels": ["label"],
        "sparse": {"user": {"rows": 100, "dimension": 4}},
        "segments": {"path": segments or f"{folder}/stream/{{segment}}.json"},
        "stream": {key: value for key, value in section.items() if value is not None},
    }
    return write_config(folder / "live.toml", {"data": tree | dict(data or {}), "model": {"embedding_dim": 4}})


def manifests(folder: Path) -> dict[str, Manifest]:
    """Returns the manifests by name."""
    files = sorted((folder / "stream").glob("*.json"))
    return {file.stem: Manifest.from_json(file.read_bytes()) for file in files}


def log_of(address: str, partitions: int = 3, topic: str = TOPIC) -> dict[int, dict[int, Logged]]:
    """Returns all records of a topic, by partition and offset, as a plain consumer reads them."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    names = {"bootstrap.servers": address, "group.id": "test", "enable.auto.commit": False, "log_level": 0}
    consumer = Consumer({**names, "enable.partition.eof": True, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found: dict[int, dict[int, Logged]] = {number: {} for number in range(partitions)}
    ended, deadline = set(), time.monotonic() + READ_SECONDS
    while len(ended) < partitions:
        assert time.monotonic() < deadline
        for message in consumer.consume(1000, 0.1):
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
            else:
                logged = Logged(message.timestamp()[1], message.key(), message.value())
                found[message.partition()][message.offset()] = logged
    consumer.close()
    return found


def check_whole(
    cut: Mapping[str, Manifest], log: Mapping[int, Mapping[int, Logged]], marker: bytes | None = None
) -> int:
    """Asserts that segments are without gaps and repeats, and that manifests name what the log has; returns offsets."""
    assert list(cut) == [f"{number:012}" for number in range(len(cut))]
    counted, ends = 0, dict.fromkeys(log, 0)
    for manifest in cut.values():
        assert manifest.partitions.keys() == log.keys()
        tombstones = 0
        for number, part in manifest.partitions.items():
            assert part.start == ends[number]
            assert part.start <= part.end <= part.high
            ends[number] = part.end
            counted += part.end - part.start
            records = {offset: log[number][offset] for offset in range(part.start, part.end)}
            records = {offset: one for offset, one in records.items() if marker is None or one.key != marker}
            tombstones += sum(one.value is None for one in records.values())
            check_groups(manifest, number, {offset: one.value for offset, one in records.items() if one.value})
        assert manifest.tombstones == tombstones
        assert manifest.left_out == sum(len(group.left_out) for group in manifest.groups)
    return counted


def check_groups(manifest: Manifest, number: int, values: Mapping[int, bytes]) -> None:
    """Asserts that the row groups of a partition have these values, each once."""
    seen, end = [], manifest.partitions[number].start
    for group in (one for one in manifest.groups if one.partition == number):
        assert end <= group.start < group.end <= manifest.partitions[number].end
        end = group.end
        inside = {offset: value for offset, value in values.items() if group.start <= offset < group.end}
        kept = [value for offset, value in inside.items() if offset not in group.left_out]
        assert (group.records, group.bytes) == (len(kept), sum(map(len, kept)))
        assert group.rows == len(kept)
        assert group.crc32 == zlib.crc32(b"".join(kept))
        seen += inside
    assert seen == [*values]


def check_copies(cut: Mapping[str, Manifest], log: Mapping[int, Mapping[int, Logged]], **storage: Any) -> int:
    """Asserts that the row groups of copies are the values of the log; returns their rows."""
    rows = 0
    for manifest in cut.values():
        for group in manifest.groups:
            fs, path = fsspec.core.url_to_fs(f"{manifest.archive}/{group.copy}", **storage)
            with fs.open(path) as file:
                table = pq.ParquetFile(file).read_row_group(group.copy_group)
            assert table.schema.equals(manifest.schema)
            expected = [
                json.loads(logged.value) | {"_partition": group.partition, "_offset": offset, "_time": logged.time}
                for offset, logged in log[group.partition].items()
                if group.start <= offset < group.end and logged.value and offset not in group.left_out
            ]
            found = table.to_pylist()
            for row in found:
                row["_time"] = round(row["_time"].timestamp() * 1000)
            assert found == expected
            rows += len(found)
    return rows


def cut(file: Path, *flags: object) -> str:
    """Cuts a topic, and returns what is printed."""
    done = run_trainer("cut-stream", file, *flags)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Following:
    """A cutter that goes on."""

    def __init__(self, folder: Path, file: Path, *flags: object) -> None:
        self._output, self._errors = folder / "cutter.log", folder / "cutter.err"
        words = ["cut-stream", file, "--follow", "True", *flags]
        self.process = start_trainer(words, self._output, self._errors, 0)

    @property
    def output(self) -> str:
        """What it has printed."""
        return self._output.read_text() if self._output.exists() else ""

    @property
    def errors(self) -> str:
        """Its errors."""
        return self._errors.read_text()

    def wait_for(self, text: str) -> None:
        """Waits until it has printed a text."""
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self.output:
            assert self.process.poll() is None, self.output + self.errors
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)

    def wait(self) -> int:
        """Returns its exit code once it has ended."""
        return self.process.wait(WAIT_SECONDS)

    def end(self) -> int:
        """Requests a stop, and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()
