"""Topics whose records a test has written, and their segments' manifests, made without the program's cutter."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from kafka_broker import Broker
from stream_values import arrow_value, avro_values, json_value

from trainer.data.stream.manifest import LOG_FIELDS, Manifest, OffsetGroup, PartitionRange

FIRST_TIME = 1_760_000_000_000  # of the first record, in milliseconds; others follow every 10


@dataclass
class Written:
    """A topic that was written to.

    Attributes:
        topic: Its name.
        format: Of its values.
        schema: The columns of its values.
        partitions: For each partition its values; None for a tombstone.
        tables: The rows of each value.
    """

    topic: str
    format: str
    schema: pa.Schema
    partitions: list[list[bytes | None]]
    tables: list[list[pa.Table]]

    def rows(self, partition: int, start: int, end: int, left_out: Sequence[int] = ()) -> pa.Table:
        """Returns the rows of a range of offsets, with the columns of the log."""
        found = []
        for offset in range(start, end):
            if self.partitions[partition][offset] is None or offset in left_out:
                continue
            table = self.tables[partition][offset]
            values = [[partition] * len(table), [offset] * len(table), [FIRST_TIME + 10 * offset] * len(table)]
            for column, numbers in zip(LOG_FIELDS, values, strict=True):
                table = table.append_column(column, pa.array(numbers, column.type))
            found.append(table)
        return pa.concat_tables(found) if found else pa.schema([*self.schema, *LOG_FIELDS]).empty_table()

    def group(self, partition: int, start: int, end: int, left_out: Sequence[int] = ()) -> OffsetGroup:
        """Returns the row group of a range of offsets."""
        values = self.partitions[partition][start:end]
        kept = [one for offset, one in enumerate(values, start) if one is not None and offset not in left_out]
        return OffsetGroup(
            partition=partition,
            start=start,
            end=end,
            rows=len(self.rows(partition, start, end, left_out)),
            records=len(kept),
            bytes=sum(map(len, kept)),
            crc32=zlib.crc32(b"".join(kept)),
            left_out=tuple(left_out),
        )

    def manifest(self, groups: Sequence[OffsetGroup]) -> Manifest:
        """Returns the manifest of a segment of these row groups."""
        of = {one.partition: [] for one in groups}
        for one in groups:
            of[one.partition].append(one)
        ranges = {
            number: PartitionRange(start=found[0].start, end=found[-1].end, high=len(self.partitions[number]))
            for number, found in of.items()
        }
        return Manifest(
            topic=self.topic,
            cluster="",
            format=self.format,
            schema=pa.schema([*self.schema, *LOG_FIELDS]),
            partitions=ranges,
            groups=tuple(groups),
        )

    def groups(self, records: int = 64, left_out: Sequence[int] = ()) -> list[OffsetGroup]:
        """Returns row groups of so many records, of all partitions."""
        return [
            self.group(
                number,
                start,
                min(start + records, len(values)),
                [one for one in left_out if 0 <= one - start < records],
            )
            for number, values in enumerate(self.partitions)
            for start in range(0, len(values), records)
        ]

    def write_parquet(self, file: Path, groups: Sequence[OffsetGroup]) -> Path:
        """Writes the rows as Parquet with the same row groups, and returns the file."""
        with pq.ParquetWriter(file, pa.schema([*self.schema, *LOG_FIELDS])) as writer:
            for one in groups:
                writer.write_table(self.rows(one.partition, one.start, one.end, one.left_out))
        return file

    def with_copies(self, folder: Path, groups: Sequence[OffsetGroup]) -> Manifest:
        """Writes copies of row groups, and returns the manifest that names them."""
        self.write_parquet(folder / "copy.parquet", groups)
        copied = [replace(one, copy="copy.parquet", copy_group=number) for number, one in enumerate(groups)]
        return replace(self.manifest(copied), archive=str(folder))


def avro_schema(table: pa.Table) -> dict:
    """Returns the schema in Avro of a table of integers and numbers."""
    kinds = {pa.int64(): "long", pa.float64(): "double"}
    fields = [{"name": field.name, "type": kinds[field.type]} for field in table.schema]
    return {"type": "record", "name": "Row", "fields": fields}


def write_topic(
    broker: Broker, topic: str, table: pa.Table, format: str = "json", partitions: int = 3, tombstones: int = 0
) -> Written:
    """Makes a topic and writes rows to its partitions in turn, with a tombstone after every so many records."""
    broker.create(topic, partitions)
    found = Written(topic, format, table.schema, [[] for _ in range(partitions)], [[] for _ in range(partitions)])
    if format == "arrow":
        tables = [table[a:b] for a, b in pairwise([*range(0, len(table), 7), len(table)])]
        written = [arrow_value(part) for part in tables]
    else:
        tables = [table[number : number + 1] for number in range(len(table))]
        rows = table.to_pylist()
        written = avro_values(avro_schema(table), rows) if format == "avro" else [json_value(row) for row in rows]
    for number, part in enumerate(tables):
        values, parts = found.partitions[number % partitions], found.tables[number % partitions]
        values.append(written[number])
        parts.append(part)
        if tombstones and number % tombstones == 0:
            values.append(None)
            parts.append(table[:0])
    send(broker, found)
    return found


def send(broker: Broker, found: Written) -> None:
    """Writes the records of a topic to a broker."""
    records = [
        {"partition": number, "value": value, "key": b"k", "timestamp": FIRST_TIME + 10 * offset}
        for number, values in enumerate(found.partitions)
        for offset, value in enumerate(values)
    ]
    broker.produce(found.topic, records)
