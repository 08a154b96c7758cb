"""Outlines of files (schema and row groups), cached from job to job: a later start reads only files that changed."""

import fcntl
import hashlib
import json
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem
from isal.isal_zlib import crc32

from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import Storage, named, open_storage
from trainer.data.readers.base import FileContents, Reader

LOCAL = Storage(LocalFileSystem())
OFFSET = np.dtype("<i8")


class Cache:
    """The cache: a directory of files that are written whole. Files may be deleted while no job runs.

    Args:
        url: The directory, on any fsspec URL. Unset: torchx-recsys in the user's cache directory.
        key: The key of the configuration that names the directory, for messages.

    Raises:
        InputError: The directory cannot be used.
    """

    def __init__(self, url: str | None, key: str = "data.cache") -> None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        self._url, self._key = url or str(Path(home, "torchx-recsys")), key
        with self._named():
            fs, folder = open_storage(self._url)
            fs.makedirs(folder)
        self._fs: Storage = fs
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        with self._named():
            return self._fs.cat_file(self._path(name)) if self._fs.exists(self._path(name)) else None

    def write(self, name: str, content: bytes) -> None:
        """Writes a file."""
        self._write(name, [content])

    def remove(self, name: str) -> None:
        """Removes a file if it exists."""
        with self._named():
            if self._fs.exists(self._path(name)):
                self._fs.rm_file(self._path(name))

    def has(self, name: str) -> bool:
        """Returns whether there is such a file."""
        with self._named():
            return self._fs.exists(self._path(name))

    def write_blocks(self, name: str, blocks: Iterable[bytes]) -> None:
        """Writes a file of blocks, each compressed alone, and a footer with the offsets of the blocks."""

        def parts() -> Iterator[bytes]:
            codec, offsets = pa.Codec("zstd", 1), [0]
            for block in blocks:
                yield (part := codec.compress(block, asbytes=True))
                offsets.append(offsets[-1] + len(part))
            yield np.array(offsets, OFFSET).tobytes()

        self._write(name, parts())

    def read_offsets(self, name: str, blocks: int) -> np.ndarray:
        """Returns where each block of a file begins and the last block ends, `[blocks + 1]`."""
        with self._named():
            footer = self._fs.cat_file(self._path(name), start=-OFFSET.itemsize * (blocks + 1))
        return np.frombuffer(footer, OFFSET)

    def read_block(self, name: str, start: int, stop: int, size: int) -> bytes:
        """Returns the block of `size` bytes that is stored in `[start, stop)` of a file."""
        with self._named():
            stored = self._fs.cat_file(self._path(name), start=start, end=stop)
        return pa.Codec("zstd").decompress(stored, size, asbytes=True)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Inside the block, other processes and threads of this host that write the same file wait."""
        if not self._fs.is_local:  # no locks there: at worst two hosts write the same file with the same content
            yield
            return
        with self._named():
            file = open(f"{self._path(name)}.lock", "w")  # noqa: SIM115, for errors of the block are not the cache's
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _named(self) -> AbstractContextManager[None]:
        return named(self._key, self._url)

    def _write(self, name: str, parts: Iterable[bytes]) -> None:
        """Writes a file under another name, and renames it once it is whole."""
        fs, path = (LOCAL, None) if self._fs.is_object_store else (self._fs, self._path(name))
        # An object store gets the file in a single write: if a part failed, fsspec would store the beginning.
        partial = f"{path or Path(tempfile.gettempdir(), name)}.{uuid.uuid4().hex}.partial"
        try:
            with self._named():
                file = fs.open(partial, "wb")
            try:
                for part in parts:  # outside of `named`, because making a part can fail, too
                    with self._named():
                        file.write(part)
            finally:
                with self._named():  # what is left is written now
                    file.close()
            with self._named():
                fs.mv(partial, path) if path else self._fs.put_file(partial, self._path(name))
        finally:
            if fs.exists(partial):
                fs.rm_file(partial)


LAYOUT = 2  # version of the files in the cache
LEAST_FILES = 256  # smallest data set to cache; fewer files are read in a second or two, also from an object store
FOOTER_THREADS = 16  # number of footers read at the same time; each takes several requests to an object store
PROGRESS_SECONDS = 10
CHUNK = 1024  # number of schemas in memory at the same time, before equal ones are merged
CHECKSUM_BYTES = 4
COLUMNS = pa.schema(
    [
        ("url", pa.large_string()),
        ("version", pa.large_string()),
        ("size", pa.int64()),
        ("row_groups", pa.large_list(pa.int64())),
        ("index", pa.large_binary()),
        ("schema", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Outlines:
    """The outlines of files.

    Attributes:
        columns: A row for each file, with the columns of `COLUMNS`; `schema` is an index into `schemas`.
        schemas: The different schemas.
    """

    columns: pa.Table
    schemas: tuple[pa.Schema, ...]

    def to_bytes(self) -> bytes:
        """Returns the outlines in a compressed form with a checksum."""
        schemas = pa.array([schema.serialize().to_pybytes() for schema in self.schemas], pa.binary())
        numbers = self.columns["schema"].combine_chunks()
        column = pa.DictionaryArray.from_arrays(numbers, schemas)
        table = self.columns.set_column(self.columns.column_names.index("schema"), "schema", column).combine_chunks()
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_file(sink, table.schema, options=options) as file:
            file.write_table(table)
        content = sink.getvalue().to_pybytes()
        return crc32(content).to_bytes(CHECKSUM_BYTES, "little") + content

    @classmethod
    def from_bytes(cls, content: bytes) -> "Outlines":
        """Reads the outlines that `to_bytes` wrote.

        Raises:
            ValueError: The content is damaged.
        """
        checksum, content = content[:CHECKSUM_BYTES], content[CHECKSUM_BYTES:]
        if crc32(content).to_bytes(CHECKSUM_BYTES, "little") != checksum:
            raise ValueError("it is damaged")
        table = pa.ipc.open_file(pa.py_buffer(content)).read_all()
        column = table["schema"].combine_chunks()
        schemas = tuple(pa.ipc.read_schema(pa.py_buffer(one)) for one in column.dictionary.to_pylist())
        return cls(table.set_column(table.column_names.index("schema"), "schema", column.indices), schemas)


EMPTY = Outlines(COLUMNS.empty_table(), ())


def find_outlines(
    key: str,
    patterns: Sequence[str],
    listed: pa.Table,
    config: DataConfig,
    reader: Reader,
    inspect: Callable[[str], FileContents],
) -> Outlines:
    """Returns the outlines of files, in order: from the cache if storage lists the same version, else read now.

    Args:
        key: The key or flag that gave the patterns, for messages.
        patterns: The patterns of the files, which name the entry in the cache.
        listed: The files, as `LISTED`.
        config: Names the reader and the cache.
        reader: The reader.
        inspect: Reads the outline of a file.
    """
    # A URL with a secret is never written to a file, so its outlines are not cached.
    can_keep = len(listed) >= LEAST_FILES and getattr(reader, "inspects_file_alone", False)
    if not can_keep or any(without_secrets(pattern) != pattern for pattern in patterns):
        return _complete(key, EMPTY, listed, inspect)
    facts = [LAYOUT, config.reader, sorted(one if "://" in one else os.path.abspath(one) for one in patterns)]
    name = f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}.outlines"
    try:
        cache = Cache(config.cache)
        content = cache.read(name)
    except InputError as error:  # a cache that fails is no reason not to train
        print(f"{key}: the footers of {plural(len(listed), 'file')} are read at every start: {error}", flush=True)
        return _complete(key, EMPTY, listed, inspect)
    kept = _unpacked(key, content) if content else EMPTY
    found = _complete(key, kept, listed, inspect)
    if found is not kept:
        try:
            cache.write(name, found.to_bytes())
        except InputError as error:
            print(f"{key}: the footers are not kept for the next start: {error}", flush=True)
    return found


def _unpacked(key: str, content: bytes) -> Outlines:
    try:
        return Outlines.from_bytes(content)
    except (ValueError, pa.ArrowException) as error:
        print(f"{key}: all footers are read again, as what was kept of them cannot be used: {error}", flush=True)
        return EMPTY


def _complete(key: str, kept: Outlines, listed: pa.Table, inspect: Callable[[str], FileContents]) -> Outlines:
    """Returns the outlines of the listed files; `kept` itself if it has exactly these files."""
    urls, sizes, versions = (listed[name].combine_chunks() for name in ("url", "size", "version"))
    there = kept.columns.select(["size", "version"])
    if kept.columns["url"].combine_chunks().equals(urls):
        places = pa.array(np.arange(len(urls), dtype=np.int32))
    else:
        places = pc.index_in(urls, kept.columns["url"])  # pyrefly: ignore[missing-attribute]
        there = there.take(places)
    same = pc.and_(pc.equal(there["size"], sizes), pc.equal(there["version"], versions))  # pyrefly: ignore
    known = same.combine_chunks().fill_null(False).to_numpy(zero_copy_only=False)
    known = known & pc.not_equal(versions, "").to_numpy(zero_copy_only=False)  # pyrefly: ignore[missing-attribute]
    if known.all() and len(known) == len(kept.columns):
        return kept  # both are sorted
    numbers = {schema: number for number, schema in enumerate(kept.schemas)}
    new = listed.filter(pa.array(~known))
    contents = _read(key, new["url"].to_pylist(), numbers, inspect)
    columns = pa.concat_tables([kept.columns.take(places.filter(pa.array(known))), _table(new, contents)])
    order = np.argsort(np.concatenate([np.flatnonzero(known), np.flatnonzero(~known)]))
    columns = columns.take(pa.array(order)).combine_chunks()
    # Schemas that no file has any more are dropped.
    used, renumbered = np.unique(columns["schema"].to_numpy(), return_inverse=True)
    place = columns.column_names.index("schema")
    columns = columns.set_column(place, "schema", pa.array(renumbered.astype(np.int32)))
    schemas = [*numbers]
    return Outlines(columns, tuple(schemas[number] for number in used))


def _table(listed: pa.Table, contents: Iterator[tuple[FileContents, int]]) -> pa.Table:
    """Returns the table of files that were just read; `schema` is the number of a file's schema."""
    columns: dict[str, list] = {name: [] for name in COLUMNS.names}
    rows = zip(*(listed[name].to_pylist() for name in ("url", "size", "version")), strict=True)
    for (url, size, listed_version), (found, number) in zip(rows, contents, strict=True):
        # A file that was replaced since the listing must not be cached under the listed version.
        version = listed_version if found.size_bytes == size else ""
        row = (url, version, found.size_bytes, found.row_groups, found.index, number)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(value)
    return pa.table(columns, COLUMNS)


def _read(
    key: str, urls: Sequence[str], numbers: dict[pa.Schema, int], inspect: Callable[[str], FileContents]
) -> Iterator[tuple[FileContents, int]]:
    """Reads the outlines of files, each with the number of its schema, and prints the progress from time to time."""
    said = time.monotonic()
    with ThreadPoolExecutor(FOOTER_THREADS) as pool:
        for start in range(0, len(urls), CHUNK):
            for found in pool.map(inspect, urls[start : start + CHUNK]):
                yield found, numbers.setdefault(found.schema.remove_metadata(), len(numbers))
            if time.monotonic() - said > PROGRESS_SECONDS:
                said = time.monotonic()
                print(
                    f"{key}: read the footers of {min(start + CHUNK, len(urls)):,} of {plural(len(urls), 'file')}",
                    flush=True,
                )
