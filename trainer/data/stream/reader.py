"""Reads segments of a topic by their manifests: a row group is a range of offsets of a partition, or its copy."""

import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import NoReturn
from weakref import finalize

import fsspec
import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.config.stream import StreamConfig
from trainer.core.console import plural
from trainer.core.errors import InputError, StorageError, first_line
from trainer.core.secrets import without_secrets
from trainer.data.readers.base import Column, FileContents
from trainer.data.readers.parquet import ParquetReader
from trainer.data.stream.decode import OWN_NAMES, Decoder, Unreadable, make_decoder
from trainer.data.stream.log import RecordsGone, TopicLog
from trainer.data.stream.manifest import OFFSET, SUFFIX, Manifest, OffsetGroup, crc32_of, log_columns

POLL_RECORDS = 2048
POLL_SECONDS = 0.2
MOST_IDLE = 4  # largest number of connections that are kept for the next row group
# A partition that ends before the offsets to read is another than it was, unless a broker is only about to come back.
SHORT_SECONDS = 5.0


class Records:
    """The records of a row group, as far as they have values.

    Attributes:
        offsets: Their offsets, `[N]`.
        times: Their times, in milliseconds since 1970.
        values: Their values.
    """

    def __init__(self) -> None:
        self.offsets, self.times, self.values = list[int](), list[int](), list[bytes]()

    def add(self, offset: int, milliseconds: int, value: bytes) -> None:
        """Adds a record."""
        self.offsets.append(offset)
        self.times.append(milliseconds)
        self.values.append(value)


class Connections:
    """Connections to a topic for several threads at once, kept for the next row group.

    A connection that has read to the beginning of a row group has its records at hand, so it is taken first.
    """

    def __init__(self, config: StreamConfig) -> None:
        self._config, self._lock = config, Lock()
        # By process, as a fork has no use of the connections of the other: partition, its next offset, the connection.
        self._kept = dict[int, list[tuple[int, int, TopicLog]]]()
        finalize(self, _close_all, self._kept)

    @property
    def _idle(self) -> list[tuple[int, int, TopicLog]]:
        return self._kept.setdefault(os.getpid(), [])

    def take(self, partition: int, offset: int) -> TopicLog:
        """Returns a connection that reads from an offset on; close it, or give it back to `keep`."""
        with self._lock:
            places = [one[:2] for one in self._idle]
            fits = (partition, offset) in places
            log = self._idle.pop(places.index((partition, offset)) if fits else 0)[2] if places else None
        log = log or TopicLog(self._config)
        if fits:
            log.go_on()
        else:
            log.assign({partition: offset})
        return log

    def keep(self, log: TopicLog, partition: int, offset: int | None) -> None:
        """Takes a connection back, with the offset from which it reads ahead; None if it is to read nothing."""
        if offset is None:
            log.assign({})
        with self._lock:
            keeps = len(self._idle) < MOST_IDLE
            if keeps:
                self._idle.append((partition, -1 if offset is None else offset, log))
        if not keeps:
            log.close()


def _close_all(kept: dict[int, list[tuple[int, int, TopicLog]]]) -> None:
    for _, _, log in kept.pop(os.getpid(), []):
        log.close()


class KafkaReader:
    """Reads segments of the topic in data.stream; a row group is a range of offsets of a partition.

    Row groups with a copy are read from Parquet, without the topic. What is read from the topic must be what was there
    when the segment was cut. Files that are named .parquet are read as Parquet, as a catalogue is no stream.
    """

    format = "Kafka manifest"
    suffix = SUFFIX
    inspects_file_alone = True
    columns_at_once = True

    def __init__(self, config: StreamConfig) -> None:
        self._config = config
        self._manifests: dict[str, Manifest] = {}
        self._decoders: dict[pa.Schema, Decoder] = {}
        self._parquet, self._connections, self._lock = ParquetReader(), Connections(config), Lock()

    @classmethod
    def from_config(cls, config: DataConfig) -> "KafkaReader":
        """Makes the reader for a data section."""
        return cls(config.stream)

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a segment by its manifest alone; no broker is needed."""
        if _is_parquet(url):
            return self._parquet.inspect(url)
        fs, path = fsspec.core.url_to_fs(url)
        text = fs.cat_file(path)
        manifest = self._take(url, text)
        return FileContents(len(text), tuple(group.rows for group in manifest.groups), manifest.schema, text)

    def use_index(self, url: str, index: bytes) -> None:
        """Receives the manifest that rank 0 read."""
        if _is_parquet(url):
            self._parquet.use_index(url, index)
        else:
            self._take(url, index)

    @contextmanager
    def open(self, url: str, row_group: int, columns: Sequence[str]) -> Iterator[Column]:
        """Opens a row group: reads and decodes its records, or opens its copy.

        Raises:
            InputError: The records are gone, or others than when the segment was cut; or a key of data.stream is wrong.
            StorageError: No broker answers.
        """
        if _is_parquet(url):
            with self._parquet.open(url, row_group, columns) as column:
                yield column
            return
        manifest = self._manifest(url)
        group = manifest.groups[row_group]
        if not group.copy:
            yield self._read(url, manifest, group, columns).column
            return
        file = f"{manifest.archive.rstrip('/')}/{group.copy}"
        with ExitStack() as stack:
            try:
                column = stack.enter_context(self._parquet.open(file, group.copy_group, columns))
            except FileNotFoundError as error:
                raise InputError(
                    f"{_where(url, group)}: its copy {without_secrets(file)} is gone; put it back, or leave the "
                    "segment out"
                ) from error

            def read(name: str) -> pa.ChunkedArray:
                found, dtype = column(name), manifest.schema.field(name).type
                return found if found.type == dtype else found.cast(dtype)  # Parquet has no seconds, for one

            yield read

    def place(self, url: str, row_group: int, row: int | None = None) -> str:
        """Names the offsets of a row group, or the offset of a row."""
        if _is_parquet(url):
            return f"row group {row_group}" + ("" if row is None else f", row {row}")
        group = self._manifest(url).groups[row_group]
        if row is None:
            return _offsets(group)
        if group.rows == group.end - group.start == group.records:
            return f"partition {group.partition}, offset {group.start + row}"
        with self.open(url, row_group, [OFFSET]) as column:
            return f"partition {group.partition}, offset {column(OFFSET)[row].as_py()}"

    def _manifest(self, url: str) -> Manifest:
        if url not in self._manifests:
            self.inspect(url)
        return self._manifests[url]

    def _take(self, url: str, text: bytes) -> Manifest:
        """Keeps a manifest, and returns it.

        Raises:
            InputError: It is none, or is of another topic.
        """
        name = without_secrets(url)
        try:
            manifest = Manifest.from_json(text)
        except ValueError as error:
            raise InputError(
                f"{name}: cannot be read as {self.format}, which data.cut_stream writes, is it whole? "
                f"({first_line(error)})"
            ) from error
        for key in ("topic", "format"):
            here, there = getattr(self._config, key), getattr(manifest, key)
            if self._config.topic and here != there:
                raise InputError(
                    f"{name}: is a segment of {key} '{there}', but data.stream.{key} is '{here}'; make them alike"
                )
        if not self._config.topic and not all(group.copy for group in manifest.groups):
            raise InputError(
                f"{name}: is a segment without copies of its records, and data.stream is not set; set "
                f"data.stream.topic = '{manifest.topic}' and data.stream.brokers"
            )
        self._manifests[url] = manifest
        return manifest

    def _decoder(self, schema: pa.Schema) -> Decoder:
        with self._lock:
            if schema not in self._decoders:
                self._decoders[schema] = make_decoder(self._config, schema)
            return self._decoders[schema]

    def _read(self, url: str, manifest: Manifest, group: OffsetGroup, columns: Sequence[str]) -> pa.Table:
        """Returns columns of the records of a row group."""
        # A connection that goes on reading at the end of the topic sends a request each time that one is answered.
        goes_on = any(one.partition == group.partition and one.start >= group.end for one in manifest.groups)
        decoder, records = self._decoder(manifest.schema), self._records(url, group, goes_on)
        if (len(records.values), crc32_of(records.values)) != (group.records, group.crc32):
            self._refuse(url, group, f"{plural(len(records.values), 'record')} where it had {group.records:,}")
        values = [name for name in columns if name not in OWN_NAMES]
        try:
            found = decoder.decode(records.values, values)
        except Unreadable as error:
            raise InputError(
                f"{without_secrets(url)}, partition {group.partition}, offset {records.offsets[error.place]}: "
                f"{error.reason}; it could be read when the segment was cut: set data.stream as it was then"
            ) from error
        if (rows := int(found.rows.sum())) != group.rows:
            raise InputError(
                f"{_where(url, group)}: {plural(rows, 'row')}, and {group.rows:,} when the segment was cut: set "
                "data.stream as it was then"
            )
        arrays = log_columns(group.partition, records.offsets, records.times, found.rows)
        arrays |= dict(zip(found.table.column_names, found.table.columns, strict=True))
        return pa.table({name: arrays[name] for name in columns})

    def _records(self, url: str, group: OffsetGroup, goes_on: bool) -> Records:
        """Reads the records of a row group from the topic; the next are read ahead if `goes_on`."""
        log = self._connections.take(group.partition, group.start)
        try:
            found, position = self._records_from(log, url, group)
        except BaseException:
            log.close()
            raise
        self._connections.keep(log, group.partition, position if goes_on else None)
        return found

    def _records_from(self, log: TopicLog, url: str, group: OffsetGroup) -> tuple[Records, int]:
        """Returns the records of a row group, and the offset that the connection reads next."""
        found, left_out, position = Records(), frozenset(group.left_out), group.start
        received = time.monotonic()
        bound, short = self._config.timeout_seconds, math.inf  # the end of the partition, if it is before the group's
        while position < group.end:
            try:
                batch = log.read(min(POLL_RECORDS, group.end - position), POLL_SECONDS)
            except RecordsGone:
                self._refuse(url, group, "no record at the first of these offsets")
            for message in batch.messages:
                offset, value = message.offset(), message.value()
                if offset is None or offset < position:  # sent again, by a broker that was away
                    continue
                position = offset + 1
                if value is not None and offset not in left_out and offset < group.end:
                    found.add(offset, message.timestamp()[1], value)
            if batch.messages:
                received, short = time.monotonic(), math.inf
            if (end := batch.ends.get(group.partition)) is not None:
                position, short = max(position, end), end
            waited = time.monotonic() - received
            if waited > min(SHORT_SECONDS, bound) and short < group.end:
                self._refuse(url, group, f"no record from offset {short} on")
            if waited > bound:
                self._refuse(url, group, "no record", StorageError)
        return found, position

    def _refuse(
        self, url: str, group: OffsetGroup, found: str, otherwise: type[StorageError | InputError] = InputError
    ) -> NoReturn:
        """Raises why the records of a row group are not those that were there when the segment was cut."""
        log = TopicLog(self._config)
        try:
            earliest = log.earliest([group.partition])[group.partition]
        finally:
            log.close()
        where, topic = _where(url, group), self._config.topic
        if earliest > group.start:
            raise InputError(
                f"{where}: the records are gone: partition {group.partition} of topic '{topic}' now begins with offset "
                f"{earliest}; leave the segment out, keep records for longer (retention.ms), and let "
                "data.stream.archive keep copies of the segments that are cut from now on"
            )
        if otherwise is StorageError:
            raise StorageError(
                f"{where}: brokers answer, but have sent no record of topic '{topic}' for data.stream.timeout_seconds "
                f"({self._config.timeout_seconds:g}); see whether partition {group.partition} has a leader and these "
                "offsets"
            )
        raise InputError(
            f"{where}: the records are others than when the segment was cut ({found}): topic '{topic}' was made anew "
            "or compacted, or data.stream.brokers is another cluster; name the right one, or cut its segments into "
            "another directory"
        )


def _is_parquet(url: str) -> bool:
    return url.partition("?")[0].endswith(ParquetReader.suffix)


def _where(url: str, group: OffsetGroup) -> str:
    return f"{without_secrets(url)}, {_offsets(group)}"


def _offsets(group: OffsetGroup) -> str:
    return f"partition {group.partition}, offsets {group.start} to {group.end - 1}"
