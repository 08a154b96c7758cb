"""Reads CSV and TSV files, plain or compressed, and finds the line of a fault."""

import csv
import hashlib
import io
import json
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from threading import BoundedSemaphore, Lock
from typing import Any, NoReturn

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from isal.isal_zlib import crc32

from trainer.config.data import DataConfig
from trainer.config.features import columns_of, ids_beside, takes
from trainer.core.console import plural
from trainer.core.errors import InputError, first_line, some_of
from trainer.core.secrets import without_secrets
from trainer.data.file_outlines import Cache
from trainer.data.files import texts_in_path
from trainer.data.listing import version_at
from trainer.data.readers.base import Column, FileContents
from trainer.data.readers.csv_index import Blocks, CsvIndex, rows_of
from trainer.data.readers.formats import COMPRESSIONS, ENDS

SHOWN = 40  # number of characters of a value that messages show


@dataclass(frozen=True)
class Dialect:
    """The special characters of a CSV file.

    Attributes:
        delimiter: Separates columns.
        quote: Encloses values; empty for none.
        list_separator: Separates the ids of a list.
        nulls: The values that mean null.
    """

    delimiter: str
    quote: str
    list_separator: str
    nulls: tuple[str, ...]

    def rows(self, text: str) -> Any:
        """Returns Python's csv reader of a text."""
        quoting = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
        lines = io.StringIO(text, newline="")
        return csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote or None, quoting=quoting)


def find_fault(
    text: bytes, first_line: int, names: Sequence[str], types: Mapping[str, pa.DataType], dialect: Dialect
) -> str | None:
    """Returns the first fault of a block, as `line 7: ...`; None if no known fault is found.

    Args:
        text: The block.
        first_line: The first line of the block.
        names: The columns of the file.
        types: The types of the columns to read.
        dialect: The characters of the file.
    """
    if fault := _stray_quote(text, first_line, dialect):
        return fault
    rows, lines = [], []
    reader = dialect.rows(text.decode(errors="surrogateescape"))
    line = first_line
    try:
        for row in reader:
            if row and len(row) != len(names):
                return (
                    f"line {line}: {plural(len(row), 'value')} between '{shown(dialect.delimiter)}' "
                    f"(data.csv.delimiter), and there are {plural(len(names), 'column')}"
                )
            if row:
                rows.append(row)
                lines.append(line)
            line = first_line + reader.line_num
    except csv.Error:  # a value that is too long for Python's reader
        return None
    columns = zip(*rows, strict=True)
    faults = [
        (row, name, values[row])
        for name, values in zip(names, columns, strict=True)
        if name in types and (row := _first_wrong(values, types[name], dialect)) is not None
    ]
    if not faults:
        return None
    row, name, value = min(faults, key=lambda fault: fault[0])
    return f"line {lines[row]}, column '{name}': {_why(name, value, types[name], dialect)}"


def _stray_quote(text: bytes, first_line: int, dialect: Dialect) -> str | None:
    """Finds a quote that neither encloses a value nor is doubled: then quotes cannot tell where rows end."""
    if not dialect.quote or dialect.quote.encode() not in text:
        return None
    q, d = (re.escape(mark.encode()) for mark in (dialect.quote, dialect.delimiter))
    value = rb"(?:%b(?:[^%b]|%b%b)*+%b|[^%b%b\r\n]*+)" % (q, q, q, q, q, q, d)
    row = re.compile(rb"%b(?:%b%b)*+(?:\r?\n|\Z)" % (value, d, value))
    place = 0
    while place < len(text):
        if not (found := row.match(text, place)):
            line = first_line + text.count(b"\n", 0, place)
            return (
                f"line {line}: a quote stands inside of a value; put quotes around the value and write it twice, or "
                "set data.csv.quote to '' if they mean nothing"
            )
        place = found.end()
    return None


def _first_wrong(values: Sequence[str], kind: pa.DataType, dialect: Dialect) -> int | None:
    """Returns the number of the first value that does not fit a type."""
    if _fits(values, kind, dialect):
        return None
    return bisect_left(range(len(values)), True, key=lambda place: not _fits(values[: place + 1], kind, dialect))


def _fits(values: Sequence[str], kind: pa.DataType, dialect: Dialect) -> bool:
    try:
        array = pa.array([None if value in dialect.nulls else value for value in values], pa.string())
        if pa.types.is_list(kind):
            array = pc.split_pattern(array, dialect.list_separator).cast(kind)  # pyrefly: ignore[missing-attribute]
        elif kind != pa.string():
            pc.utf8_trim_whitespace(array).cast(kind)  # pyrefly: ignore[missing-attribute]
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return False
    return True


def _why(name: str, value: str, kind: pa.DataType, dialect: Dialect) -> str:
    quoted = f"'{shown(value)}'"
    try:
        value.encode()
    except UnicodeEncodeError:
        return f"{quoted} is not UTF-8"
    if pa.types.is_list(kind):
        between = f"with '{shown(dialect.list_separator)}' between them (data.csv.list_separator)"
        if pa.types.is_floating(kind.value_type):
            return f"{quoted} is not a list of numbers {between}"
        return f"{quoted} is not a list of integers of 64 bits {between}; data.csv.strings names lists of text"
    if pa.types.is_integer(kind):
        return f"{quoted} is not an integer of 64 bits; if ids of '{name}' are text, name it in data.csv.strings"
    return f"{quoted} is not a number; data.csv.nulls has the values that mean null"


def shown(value: str) -> str:
    """Returns the beginning of a value for messages, in one line."""
    text = value.encode("unicode_escape", "backslashreplace").decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


SCANS = 4  # largest number of files that are scanned at the same time; each has a few blocks in memory
LAYOUT = 1  # version of the files in the cache


class CsvReader:
    """Reads CSV and TSV files; a row group is a block of whole rows.

    The configuration decides the types. A guess from the values of a block could take ids for text in one block and for
    integers in the next.
    """

    columns_at_once = True

    def __init__(self, config: DataConfig) -> None:
        self._csv = csv = config.csv
        self.format = config.reader.upper()
        self.suffix = ENDS[config.reader]
        self._dialect = Dialect(csv.delimiter_of(config.reader), csv.quote, csv.list_separator, tuple(csv.nulls))
        self._types, self._expected = column_types(config), config.columns_of_files
        self._cache = Cache(csv.cache, "data.csv.cache") if csv.cache else Cache(config.cache)
        self._indexes: dict[str, CsvIndex] = {}
        self._offsets: dict[str, np.ndarray] = {}
        self._names: dict[str, str] = {}
        self._lock, self._scans = Lock(), BoundedSemaphore(SCANS)

    @classmethod
    def from_config(cls, config: DataConfig) -> "CsvReader":
        """Makes the reader for a data section."""
        return cls(config)

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a file, from the cache or by reading the file once."""
        name = self._name(url)
        with self._cache.lock(name):  # another job that starts now waits for this index
            if kept := self._cache.read(f"{name}.index"):
                index = CsvIndex.from_bytes(kept)
            else:
                index = self._scan(url)
                self._cache.write(f"{name}.index", index.to_bytes())
        self._indexes[url] = index
        self._check_columns(url)
        schema = pa.schema([(column, self._types.get(column, pa.string())) for column in self._columns(url)])
        return FileContents(index.size_bytes, tuple(block.rows for block in index.blocks), schema, index.to_bytes())

    def use_index(self, url: str, index: bytes) -> None:
        """Receives the index of a file that rank 0 inspected."""
        self._indexes[url] = CsvIndex.from_bytes(index)

    @contextmanager
    def open(self, url: str, row_group: int, columns: Sequence[str]) -> Iterator[Column]:
        """Opens a block."""
        yield self._parse(url, row_group, columns).column

    def place(self, url: str, row_group: int, row: int | None = None) -> str:
        """Returns the lines of a block, or the first line of a row."""
        blocks = self._indexes[url].blocks
        line = blocks[row_group].line
        if row is not None:
            text = self._read(url, row_group)
            begin = int(rows_of(text, self._csv.quote)[row - 1]) if row else 0
            begin = len(text) - len(text[begin:].lstrip(b"\r\n"))  # skips empty lines
            newlines = text.count(b"\n", 0, begin)
            return f"line {line + newlines}"
        last = blocks[row_group + 1].line - 1 if row_group + 1 < len(blocks) else "the last"
        return f"lines {line} to {last}"

    def _scan(self, url: str) -> CsvIndex:
        """Reads a whole file once. Blocks of a compressed file go to the cache, where each can be read alone."""
        (fs, path), blocks = fsspec.core.url_to_fs(url), []
        with self._scans, fs.open(path, "rb") as file:
            compression = _compression(path)
            stream = pa.CompressedInputStream(file, compression) if compression else file
            cutter = Blocks(stream.read, without_secrets(url), self._csv.quote, self._csv.block_bytes)
            header = cutter.header() if self._csv.header else ""

            def texts() -> Iterator[bytes]:
                for block, text in cutter:
                    blocks.append(block)
                    yield text

            if compression:
                self._cache.write_blocks(f"{self._name(url)}.blocks", texts())
            else:
                deque(texts(), maxlen=0)
        return CsvIndex(fs.size(path), header, tuple(blocks))

    def _name(self, url: str) -> str:
        """Returns the name of a file in the cache; it changes with the contents and the blocks."""
        if url not in self._names:
            fs, path = fsspec.core.url_to_fs(url)
            of_host = url if "://" in url else fs.unstrip_protocol(path)
            facts = [LAYOUT, without_secrets(of_host), *version_at(fs, path)]
            facts += [self._csv.quote, self._csv.header, self._csv.block_bytes]
            self._names[url] = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
        return self._names[url]

    def _columns(self, url: str) -> list[str]:
        """Returns the names of a file's columns."""
        header = self._indexes[url].header
        return next(self._dialect.rows(header), []) if self._csv.header else self._csv.columns

    def _check_columns(self, url: str) -> None:
        columns, where = self._columns(url), f"{without_secrets(url)}, line 1"
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise InputError(f"{where}: the header has column '{twice[0]}' twice; every column needs a name of its own")
        given = texts_in_path(url, self._expected)
        if missing := [name for name in self._expected if name not in columns and name not in given]:
            found = some_of(columns)
            if not self._csv.header:
                raise InputError(f"data.csv.columns has no column '{missing[0]}', which is read; it has: {found}")
            raise InputError(
                f"{where}: the header has no column '{missing[0]}'; between '{shown(self._dialect.delimiter)}' "
                f"(data.csv.delimiter) it has: {shown(found)}; set data.csv.header to false if it is a row"
            )

    def _read(self, url: str, number: int) -> bytes:
        """Returns the text of a block."""
        block = self._indexes[url].blocks[number]
        fs, path = fsspec.core.url_to_fs(url)
        if _compression(path):
            start, stop = self._stored(url)[number : number + 2].tolist()
            text = self._cache.read_block(f"{self._name(url)}.blocks", start, stop, block.size)
        else:
            text = fs.cat_file(path, start=block.start, end=block.start + block.size)
        # Verified by checksum: size and date prove nothing, because hosts may have copies of their own.
        if crc32(text) != block.checksum:
            self._refuse_changed(url, number)
        return text

    def _stored(self, url: str) -> np.ndarray:
        """Returns the offsets of a compressed file's blocks in this host's cache; fills the cache if need be."""
        name = f"{self._name(url)}.blocks"
        with self._lock:
            if url not in self._offsets:
                index = self._indexes[url]
                with self._cache.lock(self._name(url)):
                    if not self._cache.has(name) and self._scan(url).blocks != index.blocks:
                        self._refuse_changed(url, 0)
                self._offsets[url] = self._cache.read_offsets(name, len(index.blocks))
        return self._offsets[url]

    def _refuse_changed(self, url: str, number: int) -> NoReturn:
        for end in ("index", "blocks"):
            self._cache.remove(f"{self._name(url)}.{end}")
        raise InputError(
            f"{without_secrets(url)}, {self.place(url, number)}: the file changed after it was indexed; start the job "
            "again, which indexes it anew"
        )

    def _parse(self, url: str, number: int, columns: Sequence[str]) -> pa.Table:
        """Returns columns of a block."""
        text, block, names = self._read(url, number), self._indexes[url].blocks[number], self._columns(url)
        types = {name: self._types.get(name, pa.string()) for name in columns}
        read = pa_csv.ReadOptions(use_threads=False, block_size=block.size + 1, column_names=names)
        parse = pa_csv.ParseOptions(
            delimiter=self._dialect.delimiter,
            quote_char=self._csv.quote or False,
            # Slower by a quarter, so it is set only if rows have several lines.
            newlines_in_values=text.count(b"\n") > block.rows,
        )
        convert = pa_csv.ConvertOptions(
            column_types={name: pa.string() if pa.types.is_list(kind) else kind for name, kind in types.items()},
            include_columns=[*types],
            null_values=self._csv.nulls,
            strings_can_be_null=True,
        )
        try:
            table = pa_csv.read_csv(pa.BufferReader(text), read, parse, convert)
            if table.num_rows != block.rows:
                raise pa.ArrowInvalid(f"{block.rows} rows by their quotes and newlines, and {table.num_rows} as read")
            return pa.table({name: self._lists(table[name], kind) for name, kind in types.items()})
        except pa.ArrowInvalid as error:
            fault = find_fault(text, block.line, names, types, self._dialect)
            fault = fault or f"{self.place(url, number)}: {first_line(error)}"
            raise InputError(f"{without_secrets(url)}, {fault}") from error

    def _lists(self, column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
        if not pa.types.is_list(kind):
            return column
        lists = pc.split_pattern(column, self._csv.list_separator)  # pyrefly: ignore[missing-attribute]
        return lists.cast(kind)


def column_types(config: DataConfig) -> dict[str, pa.DataType]:
    """Returns the types of the columns that a data section reads or filters by. All other columns are text."""
    hard = [config.catalogue.hard_negatives] if config.catalogue.hard_negatives else []
    vectors = [feature.column or name for name, feature in config.dense.items() if feature.width]
    features = [*config.dense.items(), *config.sparse.items()]
    integers = [columns_of(name, feature) for name, feature in features if takes(feature) != "numbers"]
    beside = [ids_beside(feature).values() for _, feature in features]
    ids = {*chain(*integers, *beside), *config.groups, *hard, *config.history.reads}
    types: dict[str, pa.DataType] = {}
    for name in config.columns:
        kind = pa.string() if name in config.csv.strings else pa.int64() if name in ids else pa.float64()
        types[name] = pa.list_(kind) if name in (*config.csv.lists, *hard, *vectors) else kind
    for clause in config.select.clauses:
        types.setdefault(clause.column, _type_of(clause.values))
    return types


def _type_of(values: Sequence[str | bool | int | float]) -> pa.DataType:
    """Returns the type of a column that is used only in filters."""
    if any(isinstance(value, str) for value in values):
        return pa.string()
    return pa.bool_() if all(isinstance(value, bool) for value in values) else pa.float64()


def _compression(path: str) -> str | None:
    return next((name for end, name in COMPRESSIONS.items() if path.lower().endswith(end)), None)
