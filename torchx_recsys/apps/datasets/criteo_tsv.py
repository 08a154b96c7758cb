"""Reads Criteo's text: whole lines of plain and compressed files, parsed to Arrow tables in blocks."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from trainer.core.console import plural
from trainer.core.errors import InputError

BLOCK_BYTES = 8 * 2**20
LINE_BYTES_LIMIT = 2**20  # otherwise a file without line feeds, such as a compressed one, would fill the memory

DENSE = tuple(f"int_{i}" for i in range(13))
SPARSE = tuple(f"cat_{i}" for i in range(26))
COLUMNS = ("label", *DENSE, *SPARSE)
SCHEMA = pa.schema(
    [("label", pa.float32()), *((name, pa.float32()) for name in DENSE), *((name, pa.int64()) for name in SPARSE)]
)
ID_RULE = "hexadecimal string read as an unsigned 32-bit integer; take it modulo the table's rows"
DenseTransform = Literal["log", "none"]
TRANSFORM_RULES = {"log": "log(max(x, -2) + 3), missing stays null", "none": "x, missing stays null"}

# The pattern of each field, and the fault of a field that does not match.
FIELDS = [
    (re.compile(rb"[01]"), "neither 0 nor 1"),
    *[(re.compile(rb"-?[0-9]+|"), "not an integer")] * len(DENSE),
    *[(re.compile(rb"[0-9a-fA-F]{0,8}"), "not up to 8 hexadecimal digits")] * len(SPARSE),
]
CHARACTERS = b"0123456789abcdefABCDEF-\t\n"
CONVERT = csv.ConvertOptions(
    column_types={"label": pa.int8()} | dict.fromkeys(DENSE, pa.int64()) | dict.fromkeys(SPARSE, pa.string()),
    null_values=[""],
    strings_can_be_null=True,
)
PARSE = csv.ParseOptions(delimiter="\t", quote_char=False)


class Malformed(ValueError):
    """A block of lines is not in Criteo's format."""


@dataclass(frozen=True)
class Source:
    """One file of Criteo's lines: its place among the sources, its URL, and its length when decompressed."""

    index: int
    url: str
    length: int

    @property
    def compressed(self) -> bool:
        """Whether the source can only be read from the beginning."""
        return self.url.endswith(".gz")


class LineReader:
    """Reads whole lines of one source, forwards.

    Args:
        source: The source.
    """

    def __init__(self, source: Source) -> None:
        self._file = _open(source.url)
        self._url = source.url
        self.position = 0

    def skip_to(self, start: int) -> None:
        """Moves to the first line that begins at `start` or later."""
        if self.position < start:
            # One byte back: if that is a line feed, a line begins at `start` and belongs to this slice.
            self._file.seek(start - 1)
            self.position = start - 1
            self._rest_of_line()

    def blocks(self, end: int) -> Iterator[bytes]:
        """Yields the lines that begin before `end`, in blocks."""
        while self.position < end:
            block = self._file.read(min(BLOCK_BYTES, end - self.position))
            if not block:
                raise InputError(
                    f"{self._url} ends at byte {self.position:,}, before its length of {end:,}; was it cut?"
                )
            self.position += len(block)
            yield block if block.endswith(b"\n") else block + self._rest_of_line()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _rest_of_line(self) -> bytes:
        rest = self._file.readline(LINE_BYTES_LIMIT)
        if len(rest) == LINE_BYTES_LIMIT:
            raise InputError(f"{self._url}: a line at byte {self.position:,} is over 1 MiB long; is it Criteo's text?")
        self.position += len(rest)
        return rest


def lines_before(url: str, end: int) -> int:
    """Counts the lines that end before a position in a source."""
    lines, position = 0, 0
    with _open(url) as file:
        while position < end and (block := file.read(min(BLOCK_BYTES, end - position))):
            lines += block.count(b"\n")
            position += len(block)
    return lines


def length(url: str) -> int:
    """Returns the bytes of text in a source. Reads a compressed source from beginning to end.

    Raises:
        InputError: The source cannot be decompressed.
    """
    if not url.endswith(".gz"):
        return size(url)
    with _open(url) as file:
        try:
            return sum(len(block) for block in iter(lambda: file.read(BLOCK_BYTES), b""))
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InputError(f"{url}: cannot be decompressed, is it whole? ({error})") from error


def size(url: str) -> int:
    """Returns the stored bytes of a source."""
    fs, path = fsspec.core.url_to_fs(url)
    return fs.size(path)


def _open(url: str) -> io.BufferedReader:
    """Opens a source."""
    # In Python's reader, because `readline` of some fsspec files cannot limit the length of a line.
    fs, path = fsspec.core.url_to_fs(url)
    return io.BufferedReader(fs.open(path, "rb", compression="gzip" if url.endswith(".gz") else None))


def parse(block: bytes, transform: DenseTransform) -> pa.Table:
    """Turns whole lines into a table.

    Args:
        block: Lines that end in a line feed; the last one need not.
        transform: Transform of the 13 integers.

    Raises:
        Malformed: A line is malformed; `sift` finds it. Empty lines are skipped.
    """
    if block.translate(None, CHARACTERS):
        raise Malformed("a character that no field has")
    # Without Arrow's threads, because each core has a worker. As one block, so that columns have one chunk.
    read = csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=COLUMNS)
    try:
        lines = csv.read_csv(pa.BufferReader(block), read, PARSE, CONVERT).combine_chunks()
    except pa.ArrowInvalid as error:
        raise Malformed(str(error)) from error
    columns = {name: lines[name].chunk(0) for name in COLUMNS}
    arrays = [_label(columns["label"])]
    arrays += [_dense(columns[name], transform) for name in DENSE]
    arrays += [_ids(columns[name]) for name in SPARSE]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def sift(block: bytes, transform: DenseTransform) -> tuple[bytes, list[tuple[int, str]]]:
    """Separates the lines that `parse` accepts from the malformed ones.

    Returns:
        The good lines, and for every other line its number in the block (from 0) and its fault.
    """
    good, faults = [], []
    for number, line in enumerate(block.removesuffix(b"\n").split(b"\n")):
        if line and (problem := _fault(line, transform)):
            faults.append((number, problem))
        elif line:
            good.append(line)
    return b"\n".join(good), faults


def _fault(line: bytes, transform: DenseTransform) -> str | None:
    fields = line.split(b"\t")
    if len(fields) != len(COLUMNS):
        hint = "; without a label it cannot be converted" if len(fields) == len(COLUMNS) - 1 else ""
        return f"{plural(len(fields), 'tab-separated field')} instead of {len(COLUMNS)}{hint}"
    for name, field, (pattern, fault) in zip(COLUMNS, fields, FIELDS, strict=True):
        if not pattern.fullmatch(field):
            return f"{name} is {_shown(field)}, {fault}"
        if name in DENSE and field and not _fits(field):
            return f"{name} is {_shown(field)}, too large for a 64-bit integer"
    return None


def _shown(field: bytes) -> str:
    return repr(field[:40].decode("utf-8", "replace"))


def _fits(digits: bytes) -> bool:
    return len(digits) <= 20 and -(2**63) <= int(digits) < 2**63


def _label(column: pa.Array) -> pa.Array:
    if column.null_count or not np.isin(column, (0, 1)).all():
        raise Malformed("a label is neither 0 nor 1")
    return column.cast(pa.float32())


def _dense(column: pa.Array, transform: DenseTransform) -> pa.Array:
    values = column.fill_null(0).to_numpy()
    if transform == "log":
        # The data holds a few -3, whose log would be infinite.
        values = np.log((np.maximum(values, -2) + 3.0).astype(np.float32))
    return pa.array(values.astype(np.float32), mask=np.asarray(column.is_null()))


def _ids(column: pa.Array) -> pa.Array:
    # On the bytes of all strings at once: Arrow parses hexadecimal only after a prefix 0x, and int(text, 16) makes an
    # object of every value.
    missing = np.asarray(column.is_null())
    digits = np.diff(np.frombuffer(column.buffers()[1], np.int32, len(column) + 1))
    if digits.max() > 8:
        raise Malformed("an id has more than 8 digits")
    if (digits[~missing] < 8).any():
        column = pc.call_function("ascii_lpad", [column], pc.PadOptions(8, "0"))
    ids = np.zeros(len(column), np.int64)
    if not missing.all():
        ids[~missing] = _unsigned(np.frombuffer(column.buffers()[2], "<u8", len(column) - column.null_count))
    return pa.array(ids, mask=missing)


def _unsigned(digits: np.ndarray) -> np.ndarray:
    """Reads hexadecimal numbers: eight characters in a 64-bit word, the first character in the lowest byte."""
    if int(np.bitwise_and.reduce(digits | digits >> 2)) & 0x1010101010101010 != 0x1010101010101010:
        raise Malformed("an id has a minus sign")  # of the remaining characters, only "-" has neither bit
    nibbles = (digits & 0x0F0F0F0F0F0F0F0F) + 9 * (digits >> 6 & 0x0101010101010101)
    octets = (nibbles << 4 | nibbles >> 8) & 0x00FF00FF00FF00FF
    words = (octets << 8 | octets >> 16) & 0x0000FFFF0000FFFF
    return (words << 16 | words >> 32) & 0xFFFFFFFF
