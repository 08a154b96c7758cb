"""The segment that is cut now: takes records, decodes them in row groups, and counts what its manifest names."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torchx_recsys.apps.cut_stream.archive import Archive
from trainer.config.stream import StreamConfig
from trainer.core.console import plural
from trainer.core.errors import InputError, nearest
from trainer.data.stream.decode import Decoded, Decoder, make_decoder
from trainer.data.stream.manifest import (
    GROUP_BYTES,
    GROUP_RECORDS,
    LOG_FIELDS,
    Manifest,
    OffsetGroup,
    PartitionRange,
    crc32_of,
    log_columns,
)

WAITING_BYTES = 256 << 20  # largest size of the values that wait to be decoded, over all partitions
LEAST_GROUP_BYTES = 1 << 20
TOLD_OFFSETS = 3  # number of records that cannot be read, of a row group, that a line names

Waiting = tuple[int, int, bytes]
"""Offset, time in milliseconds since 1970, value."""


class Values:
    """Decodes the values of all segments to the same columns, which the first segment decides.

    Args:
        config: The stream section.
        schema: The columns of earlier segments, `LOG_FIELDS` among them; None without any.
        partitions: Number of partitions.

    Attributes:
        group_bytes: Size of the values from which a row group is full. It depends on nothing that changes with the
            speed of brokers, so that a segment that is cut again has the same row groups.
    """

    def __init__(self, config: StreamConfig, schema: pa.Schema | None, partitions: int) -> None:
        self.config = config
        self.group_bytes = min(GROUP_BYTES, max(LEAST_GROUP_BYTES, WAITING_BYTES // max(partitions, 1)))
        self._decoder: Decoder | None = None
        self._told: set[str] = set()
        if schema is not None:
            _check_columns(config, schema)
            self._take(make_decoder(config, schema))

    @property
    def is_decided(self) -> bool:
        """Whether the columns are known."""
        return self._decoder is not None

    @property
    def schema(self) -> pa.Schema:
        """The columns of rows."""
        assert self._decoder
        return pa.schema([*self._decoder.schema, *LOG_FIELDS])

    def decide(self, values: list[bytes]) -> None:
        """Decides the columns by the first values of the topic.

        Raises:
            InputError: They do not decide them, or data.stream.event_time is no such column.
        """
        self._take(make_decoder(self.config, None, values))

    def decode(self, values: list[bytes]) -> Decoded:
        """Decodes values; the errors are those of `decode_readable`."""
        assert self._decoder
        found = self._decoder.decode_readable(values)
        for name, why in self._decoder.left_out.items():
            if name not in self._told:
                print(f"note: field '{name}' of records is left out: {why}", flush=True)
        self._told |= self._decoder.left_out.keys()
        return found

    def event_times(self, table: pa.Table, times: np.ndarray) -> np.ndarray:
        """Returns the time of the event of each row, in seconds since 1970; NaN for null.

        Args:
            table: The rows.
            times: The times that Kafka has, in seconds.
        """
        name = self.config.event_time
        if name is None:
            return times
        column = table[name]
        if pa.types.is_timestamp(column.type):
            per_second = 1e6
            column = pc.cast(column, pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
        else:
            per_second = 1.0
        seconds = pc.cast(column, pa.float64(), safe=False).fill_null(np.nan).to_numpy()
        return seconds / per_second

    def _take(self, decoder: Decoder) -> None:
        fields = {field.name: field.type for field in decoder.schema}
        name = self.config.event_time
        if name is not None:
            if name not in fields:
                raise InputError(
                    f"data.stream.event_time is '{name}', which records do not have{nearest(name, fields)}"
                )
            dtype = fields[name]
            if not (pa.types.is_timestamp(dtype) or pa.types.is_integer(dtype) or pa.types.is_floating(dtype)):
                raise InputError(
                    f"data.stream.event_time is '{name}', a column of {dtype}; name a column of timestamps, or of "
                    "seconds since 1970"
                )
        self._decoder = decoder


@dataclass
class _Part:
    """The part of a segment in a partition: row groups, and records that wait to be decoded."""

    start: int
    end: int
    group_start: int
    waiting: list[Waiting] = field(default_factory=list)
    bytes: int = 0
    groups: list[OffsetGroup] = field(default_factory=list)


class OpenSegment:
    """A segment that takes records until `finish`.

    Args:
        name: Its name.
        values: Decodes values.
        starts: Offsets with which it begins, by partition.
        newest_event: The latest event time of all earlier segments; None without.
        archive: Gets a copy; None for none.

    Attributes:
        records: Records that it has.
        tombstones: Those of them without a value.
        left_out: Those that could not be read.
        late: Those with an earlier event time than `newest_event`.
        newest_time: The latest time that Kafka has of any record, in seconds since 1970; None without records.
    """

    def __init__(
        self,
        name: str,
        values: Values,
        starts: Mapping[int, int],
        newest_event: float | None,
        archive: Archive | None,
    ) -> None:
        self.name, self._values, self._archive = name, values, archive
        self._copies = None
        self._parts = {number: _Part(start, start, start) for number, start in sorted(starts.items())}
        self._before = newest_event
        self._first: float | None = None
        self._last = newest_event
        self.records = self.tombstones = self.left_out = self.late = 0
        self.newest_time: float | None = None

    @property
    def ends(self) -> dict[int, int]:
        """The offsets after its last, by partition."""
        return {number: part.end for number, part in self._parts.items()}

    @property
    def can_be_cut(self) -> bool:
        """Whether it knows the columns of its rows: not before there is a value in the topic that decides them."""
        return self._values.is_decided or any(part.waiting for part in self._parts.values())

    def add(self, partition: int, offset: int, milliseconds: int, value: bytes | None) -> None:
        """Adds a record, which comes after all others of its partition.

        Raises:
            InputError: A record cannot be read, and data.stream.poison is not skip.
            StorageError: A schema registry does not answer, or the disk of this host is full.
        """
        part = self._parts[partition]
        assert offset >= part.end
        part.end = offset + 1
        self.records += 1
        seconds = milliseconds / 1000
        if self.newest_time is None or seconds > self.newest_time:
            self.newest_time = seconds
        if value is None:
            self.tombstones += 1
            return
        part.waiting.append((offset, milliseconds, value))
        part.bytes += len(value)
        if len(part.waiting) == GROUP_RECORDS or part.bytes >= self._values.group_bytes:
            self._close_group(partition, part)

    def pass_by(self, partition: int, offset: int) -> None:
        """Notes that no record of the partition before an offset is a row, beyond those that were added."""
        part = self._parts[partition]
        part.end = max(part.end, offset)

    def finish(self, highs: Mapping[int, int], cluster: str, now: float) -> Manifest:
        """Decodes what waits, writes the copies, and returns the manifest.

        Args:
            highs: The ends of the partitions in the topic.
            cluster: Id of the cluster.
            now: The time, in seconds since 1970.

        Raises:
            InputError: As in `add`; or the archive cannot be written.
        """
        for number, part in self._parts.items():
            self._close_group(number, part)
        config = self._values.config
        ranges = {
            number: PartitionRange(start=part.start, end=part.end, high=max(part.end, highs.get(number, part.end)))
            for number, part in self._parts.items()
        }
        groups = [group for part in self._parts.values() for group in part.groups]
        archive = ""
        if self._copies:
            archive, groups = self._copies.url, self._copies.finish(groups, ranges)
        return Manifest(
            topic=config.topic or "",
            cluster=cluster,
            format=config.format,
            schema=self._values.schema,
            partitions=ranges,
            groups=tuple(groups),
            tombstones=self.tombstones,
            left_out=self.left_out,
            late=self.late,
            first_event=self._first,
            last_event=self._last,
            cut_at=now,
            archive=archive,
        )

    def drop(self) -> None:
        """Forgets it."""
        if self._copies:
            self._copies.drop()

    def _close_group(self, number: int, part: _Part) -> None:
        """Decodes the records that wait in a partition, as a row group; one without rows is in no list."""
        if not part.waiting:
            return
        if not self._values.is_decided:
            parts = self._parts.values()
            self._values.decide([value for part in parts for _, _, value in part.waiting])
        offsets, milliseconds, values = (list(column) for column in zip(*part.waiting, strict=True))
        decoded = self._values.decode(values)
        bad = {fault.place for fault in decoded.faults}
        left_out = tuple(offsets[place] for place in sorted(bad))
        self._report(number, offsets, decoded)
        arrays = log_columns(number, offsets, milliseconds, decoded.rows)
        arrays |= dict(zip(decoded.table.column_names, decoded.table.columns, strict=True))
        table = pa.table({name: arrays[name] for name in self._values.schema.names}).cast(self._values.schema)
        if table.num_rows:
            kept = [value for place, value in enumerate(values) if place not in bad]
            group = OffsetGroup(
                partition=number,
                start=part.group_start,
                end=offsets[-1] + 1,
                rows=table.num_rows,
                records=len(kept),
                bytes=sum(map(len, kept)),
                crc32=crc32_of(kept),
                left_out=left_out,
                copy_group=self._copy(number, table),
            )
            part.groups.append(group)
        self.left_out += len(left_out)
        self._count_events(decoded, table, np.asarray(milliseconds) / 1000)
        part.group_start, part.waiting, part.bytes = offsets[-1] + 1, [], 0

    def _copy(self, number: int, table: pa.Table) -> int:
        if self._archive is None:
            return 0
        self._copies = self._copies or self._archive.begin(self.name, self._values.schema)
        return self._copies.write(number, table)

    def _report(self, number: int, offsets: list[int], decoded: Decoded) -> None:
        """Reports records that cannot be read.

        Raises:
            InputError: data.stream.poison is stop.
        """
        if not decoded.faults:
            return
        first, config = decoded.faults[0], self._values.config
        where = f"partition {number} of topic '{config.topic}'"
        if config.poison == "stop":
            raise InputError(
                f"the record at offset {offsets[first.place]:,} of {where} cannot be read: {first.reason}; correct the "
                "producer, and write data.stream.poison = 'skip' to leave such records out"
            )
        shown = "; ".join(f"{offsets[one.place]:,}: {one.reason}" for one in decoded.faults[:TOLD_OFFSETS])
        more = f"; and {len(decoded.faults) - TOLD_OFFSETS:,} more" if len(decoded.faults) > TOLD_OFFSETS else ""
        are = "are" if len(decoded.faults) > 1 else "is"
        print(f"{plural(len(decoded.faults), 'record')} of {where} {are} left out, at offset {shown}{more}", flush=True)

    def _count_events(self, decoded: Decoded, table: pa.Table, times: np.ndarray) -> None:
        records = np.repeat(np.arange(len(decoded.rows)), decoded.rows)
        events = self._values.event_times(table, times[records])
        known = np.isfinite(events)
        if not known.any():
            return
        if self._before is not None:
            self.late += len(np.unique(records[known & (events < self._before)]))
        first, last = float(events[known].min()), float(events[known].max())
        self._first = first if self._first is None else min(self._first, first)
        self._last = last if self._last is None else max(self._last, last)


def _check_columns(config: StreamConfig, schema: pa.Schema) -> None:
    """Refuses types in data.stream.columns that are not those of earlier segments; raises InputError."""
    for declared in make_decoder(config, None).schema if config.columns else ():
        at = schema.get_field_index(declared.name)
        found = schema.field(at).type if at >= 0 else None
        if found != declared.type:
            has = "have no such column" if found is None else f"have {found}"
            raise InputError(
                f"data.stream.columns.{declared.name} is '{config.columns[declared.name]}', but earlier segments "
                f"{has}, and all segments have the columns of the first; set it as it was, or name another directory "
                "in data.segments.path"
            )
