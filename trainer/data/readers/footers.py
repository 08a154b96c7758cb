"""Footers of Parquet files, each with a digest: a file is the one that was listed while its footer is the same."""

import hashlib
import os
from dataclasses import dataclass
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

END_BYTES = 1 << 16  # read at once, in which most footers are whole
MARK_BYTES = 8  # behind the footer: its length and four letters
INT96_UNIT = "us"
"""The unit of timestamps of 96 bits, which Spark and Hive write: nanoseconds would wrap around outside 1677 to 2262."""


@dataclass(frozen=True)
class Footer:
    """The footer of a file.

    Attributes:
        metadata: Its content.
        schema: The columns.
        digest: Changes with the names, types, places, sizes and bounds of all columns.
        size_bytes: Size of the file.
    """

    metadata: pq.FileMetaData
    schema: pa.Schema
    digest: bytes
    size_bytes: int


def read_footer(file: IO[bytes]) -> Footer:
    """Reads the footer of an open file, from storage in one request."""
    size = file.size() if isinstance(file, pa.NativeFile) else file.seek(0, os.SEEK_END)
    end = _end_of(file, size, END_BYTES)
    length = int.from_bytes(end[-MARK_BYTES : -MARK_BYTES // 2], "little") + MARK_BYTES
    if len(end) < length <= size:
        end = _end_of(file, size, length)
    with pq.ParquetFile(pa.BufferReader(end), coerce_int96_timestamp_unit=INT96_UNIT) as parsed:
        digest = hashlib.blake2b(end[-length:], digest_size=8).digest()
        return Footer(parsed.metadata, parsed.schema_arrow, digest, size)


def _end_of(file: IO[bytes], size: int, length: int) -> bytes:
    start = max(0, size - length)
    if isinstance(file, pa.NativeFile):  # from which several threads may read
        return file.read_at(size - start, start)
    file.seek(start)
    return file.read(size - start)
