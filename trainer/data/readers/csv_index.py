"""Divides a CSV file into blocks of whole rows, each of which can be read alone."""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass

import numpy as np
from isal.isal_zlib import crc32

from trainer.core.errors import InputError

NEWLINE, RETURN = 10, 13
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Block:
    """A block: consecutive rows of a file.

    Attributes:
        start: First byte in the uncompressed text.
        size: Number of bytes.
        rows: Number of rows, empty lines excluded.
        line: Number of the block's first line in the file; the first is 1.
        checksum: CRC-32 of the bytes.
    """

    start: int
    size: int
    rows: int
    line: int
    checksum: int


@dataclass(frozen=True)
class CsvIndex:
    """The outline of a file.

    Attributes:
        size_bytes: Stored size of the file.
        header: The line with the names of the columns; empty if the file has no such line.
        blocks: The blocks in order.
    """

    size_bytes: int
    header: str
    blocks: tuple[Block, ...]

    def to_bytes(self) -> bytes:
        """Packs the index, to send it to all ranks."""
        blocks = [astuple(block) for block in self.blocks]
        return zlib.compress(json.dumps([self.size_bytes, self.header, blocks]).encode(), 1)

    @classmethod
    def from_bytes(cls, content: bytes) -> "CsvIndex":
        """Unpacks an index that `to_bytes` packed."""
        size, header, blocks = json.loads(zlib.decompress(content))
        return cls(size, header, tuple(Block(*block) for block in blocks))


def row_ends(text: np.ndarray, quote: str, inside: bool = False) -> tuple[np.ndarray, bool]:
    """Returns the ends of rows, after their newlines, and whether a quote is open at the end of the text.

    A newline ends a row if the number of quotes before it is even, because quotes inside a value are doubled.

    Args:
        text: The text, uint8.
        quote: The quote; empty for none.
        inside: Whether a quote is open at the beginning.
    """
    newlines = np.flatnonzero(text == NEWLINE) + 1
    quotes = np.flatnonzero(text == ord(quote)) if quote else newlines[:0]
    if not len(quotes):
        return newlines[: 0 if inside else None], inside
    odd = (np.searchsorted(quotes, newlines) + inside) % 2
    return newlines[odd == 0], bool((len(quotes) + inside) % 2)


def rows_of(text: bytes, quote: str) -> np.ndarray:
    """Returns the ends of the rows in a block, without empty lines."""
    array = np.frombuffer(text, np.uint8)
    ends, _ = row_ends(array, quote)
    return without_empty(array, ends if text.endswith(b"\n") else np.append(ends, len(text)))


def without_empty(text: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Removes the ends of empty lines."""
    lengths = np.diff(ends, prepend=0)
    last, before = text[ends - 1], text[np.maximum(ends - 2, 0)]
    empty = (last == NEWLINE) & ((lengths == 1) | ((lengths == 2) & (before == RETURN)))
    return ends[~empty]


class Blocks:
    """Iterates over the blocks of a text, which is read once from beginning to end; holds about three blocks.

    Args:
        read: Returns the next bytes, at most the given number; empty at the end.
        where: Name of the file in messages.
        quote: The quote; empty for none.
        block_bytes: The largest size of a block and of a row.

    Attributes:
        header: The first row, known once the first block was made.
    """

    def __init__(self, read: Callable[[int], bytes], where: str, quote: str, block_bytes: int) -> None:
        self._read, self._where, self._quote, self._block_bytes = read, where, quote, block_bytes
        self._text, self._ends, self._inside = b"", np.empty(0, np.int64), False
        self._start, self._line, self._at_end = 0, 1, False

    def header(self) -> str:
        """Removes the first row from the text and returns it, without its newline."""
        self._begin()
        while not len(self._ends) and not self._at_end:
            self._refuse_long_row()
            self._more()
        if not self._text.strip():
            raise InputError(f"{self._where}, line 1: there is no header, with the names of the columns; add it")
        header = self._take(int(self._ends[0]))[1]
        try:
            return header.decode().rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InputError(f"{self._where}, line 1: the header is not UTF-8 at byte {error.start}") from error

    def __iter__(self) -> Iterator[tuple[Block, bytes]]:
        """Yields each block with its text."""
        self._begin()
        while not self._at_end or self._text:
            # Only the text decides where blocks end, not how many bytes a read returns.
            while not self._at_end and len(self._text) <= self._block_bytes:
                self._more()
            if not self._text:
                return
            self._refuse_long_row()
            yield self._take(int(self._ends[self._ends <= self._block_bytes][-1]))

    def _begin(self) -> None:
        if self._start or self._at_end:
            return
        while len(self._text) < len(BYTE_ORDER_MARK) and not self._at_end:
            self._more()
        if self._text.startswith(BYTE_ORDER_MARK):
            self._start = len(BYTE_ORDER_MARK)
            self._text, self._ends = self._text[self._start :], self._ends - self._start

    def _more(self) -> None:
        """Reads more text; at the end of the file, ends the last row, which may lack a newline."""
        text = self._read(self._block_bytes)
        if (place := text.find(b"\0")) >= 0:
            line = self._line + self._text.count(b"\n") + text.count(b"\n", 0, place)
            raise InputError(f"{self._where}, line {line}: it has a NUL byte, which text in UTF-8 has not")
        ends, self._inside = row_ends(np.frombuffer(text, np.uint8), self._quote, self._inside)
        self._ends = np.append(self._ends, ends + len(self._text))
        self._text += text
        self._at_end = not text
        if self._at_end and self._inside:
            raise InputError(f"{self._where}, line {self._last_line()}: a quote is opened and never closed")
        if self._at_end and self._text and not (len(self._ends) and self._ends[-1] == len(self._text)):
            self._ends = np.append(self._ends, len(self._text))

    def _last_line(self) -> int:
        """Returns the number of the first line after the last complete row."""
        return self._line + self._text.count(b"\n", 0, int(self._ends[-1]) if len(self._ends) else 0)

    def _refuse_long_row(self) -> None:
        first = int(self._ends[0]) if len(self._ends) else len(self._text)
        if first > self._block_bytes:
            raise InputError(
                f"{self._where}, line {self._line}: a row has more than the {self._block_bytes} bytes of "
                "data.csv.block_bytes; close its quotes, or raise that"
            )

    def _take(self, size: int) -> tuple[Block, bytes]:
        text, self._text = self._text[:size], self._text[size:]
        mine = self._ends <= size
        rows = len(without_empty(np.frombuffer(text, np.uint8), self._ends[mine]))
        block = Block(self._start, size, rows, self._line, crc32(text))
        self._ends = self._ends[~mine] - size
        self._start += size
        self._line += text.count(b"\n")
        return block, text
