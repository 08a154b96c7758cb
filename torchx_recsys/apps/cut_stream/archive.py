"""Copies of the segments of a topic in Parquet, which are read in place of the topic."""

import json
import posixpath
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from tempfile import TemporaryFile
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import has_secrets, place, without_secrets
from trainer.core.storage import named, os_errors
from trainer.data.stream.manifest import OffsetGroup, PartitionRange

KEY = "data.stream.archive"
OURS = re.compile(r"\d+-\d+-\d+\.parquet(\.\w+\.partial)?")
ORIGIN = b"torchx_recsys.segment"  # key in the footer of a copy, of the segment that it is of
COPIED_AT_ONCE = 8
COPY_BYTES = 1 << 20


class Archive:
    """The directory of copies.

    Args:
        url: Any fsspec URL.
        home: URL of the directory of manifests. Copies of another's segments are never removed.

    Raises:
        InputError: The directory cannot be used.
    """

    def __init__(self, url: str, home: str) -> None:
        if has_secrets(url):  # which manifests would show
            raise InputError(
                f"{KEY} is {place(url)}, with a secret in it; leave it out there, and give it to the job by the "
                "environment"
            )
        self.run, self._home = RunDirectory(url, KEY), home
        with named(KEY, url):
            self.run.fs.makedirs(self.run.path())

    def remove_remains(self, segment: str) -> None:
        """Removes copies that a killed cutter has left of a segment without a manifest, and reports them.

        Raises:
            InputError: There are other files.
        """
        with named(KEY, self.run.url):
            found = self.run.fs.find(self.run.path(segment))
            for path in found:
                if not self._is_ours(path, segment):
                    raise InputError(
                        f"{KEY} is {place(self.run.url)}, which holds {segment}/{posixpath.basename(path)} of "
                        "something else; name another directory, or delete that"
                    )
            for path in found:
                self.run.fs.rm_file(path)
        if found:
            files = f"{len(found):,} file{'' if len(found) == 1 else 's'}"
            print(f"removed {files} of segment {segment} from {without_secrets(self.run.url)}: no manifest names them")

    def begin(self, segment: str, schema: pa.Schema) -> "Copies":
        """Returns the copies of a segment, which are to be written."""
        return Copies(self.run, segment, schema, self._origin(segment))

    def _is_ours(self, path: str, segment: str) -> bool:
        name = posixpath.basename(path)
        if not OURS.fullmatch(name):
            return False
        if not name.endswith(".parquet"):
            return True
        try:
            with self.run.fs.open(path) as file:
                metadata = pq.read_metadata(file).metadata or {}
        except pa.ArrowInvalid:  # torn, by a power cut
            return True
        return metadata.get(ORIGIN) == self._origin(segment)

    def _origin(self, segment: str) -> bytes:
        return json.dumps({"segment": segment, "manifests": self._home}).encode()


def _texts(schema: pa.Schema) -> list[str]:
    """Returns the columns of texts by their paths in Parquet: dictionaries of numbers only take time and space."""
    paths = [
        (f"{field.name}.list.element" if pa.types.is_list(field.type) else field.name, field.type) for field in schema
    ]
    return [
        path
        for path, dtype in paths
        if (dtype.value_type if pa.types.is_list(dtype) else dtype) in (pa.string(), pa.large_string())
    ]


class Copies:
    """The copies of one segment: a file for each partition.

    They are written to files without a name on this host first, as the name of a copy has the offset that ends it, and
    as a file on an object store is there only once it is whole. A killed cutter leaves none of them.

    Args:
        run: The archive.
        segment: Name of the segment.
        schema: The columns.
        origin: What the footers name.
    """

    def __init__(self, run: RunDirectory, segment: str, schema: pa.Schema, origin: bytes) -> None:
        self._run, self._segment, self._schema, self._origin = run, segment, schema, origin
        self._open: dict[int, tuple[BinaryIO, pq.ParquetWriter, int]] = {}

    @property
    def url(self) -> str:
        """Their directory."""
        return self._run.url_of(self._segment)

    def write(self, partition: int, table: pa.Table) -> int:
        """Writes a row group and returns its number in the file of the partition.

        Raises:
            StorageError: The disk of this host is full.
        """
        with os_errors():
            if partition not in self._open:
                file = TemporaryFile()  # noqa: SIM115 (closed by `finish` or `drop`)
                writer = pq.ParquetWriter(file, self._schema, compression="zstd", use_dictionary=_texts(self._schema))
                self._open[partition] = file, writer, 0
            file, writer, number = self._open[partition]
            writer.write_table(table, row_group_size=table.num_rows)
        self._open[partition] = file, writer, number + 1
        return number

    def finish(self, groups: list[OffsetGroup], ranges: dict[int, PartitionRange]) -> list[OffsetGroup]:
        """Puts the copies where they belong, durable, and returns the row groups with their names.

        Raises:
            InputError: The archive holds such a file, or cannot be written.
        """
        # The numbers of partitions have leading zeros, so that files sorted by name are in the order of the manifest.
        names = {number: f"{number:05}-{ranges[number].start}-{ranges[number].end}.parquet" for number in self._open}
        with named(KEY, self._run.url):
            self._run.fs.makedirs(self._run.path(self._segment))
            with ThreadPoolExecutor(COPIED_AT_ONCE) as pool:
                for _ in pool.map(self._put, names, names.values()):
                    pass
        self.drop()
        return [replace(group, copy=names[group.partition]) for group in groups]

    def drop(self) -> None:
        """Forgets what is not where it belongs."""
        for file, writer, _ in self._open.values():
            with suppress(OSError):  # such as of a full disk, which `write` has reported
                writer.close()  # first, or it would write to a closed file once it is collected
            file.close()
        self._open = {}

    def _put(self, partition: int, name: str) -> None:
        file, writer, _ = self._open[partition]
        with os_errors():
            writer.add_key_value_metadata({ORIGIN: self._origin})
            writer.close()
            file.seek(0)
        fs, path = self._run.fs, self._run.path(self._segment, name)
        if fs.exists(path):
            raise InputError(
                f"{KEY} is {place(self._run.url)}, which holds {self._segment}/{name} already; name another directory"
            )
        with fs.durable(path) if fs.is_object_store else fs.whole(path) as copy:
            shutil.copyfileobj(file, copy, COPY_BYTES)
