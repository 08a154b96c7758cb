"""File formats: readers by name, and the format of a file by the ending of its name or its first bytes."""

from dataclasses import dataclass
from itertools import chain

import fsspec

from trainer.config.data import DataConfig
from trainer.core.registry import find_by_name
from trainer.data.readers.base import Reader

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
ENDS = {
    "parquet": (".parquet",),
    "csv": tuple(f".csv{end}" for end in ("", *COMPRESSIONS)),
    "tsv": tuple(f".tsv{end}" for end in ("", *COMPRESSIONS)),
    "arrow": (".arrow", ".feather", ".ipc"),
}
"""The ends of the names of files by `data.reader`."""
NAMES = {"parquet": "Parquet", "csv": "CSV", "tsv": "TSV", "arrow": "Arrow IPC"}
MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow"}
FIRST_BYTES = 4096


@dataclass(frozen=True)
class Format:
    """The endings of file names; stands in for a reader when files are only listed."""

    suffix: tuple[str, ...]


ANY_FORMAT = Format(tuple(chain(*ENDS.values())))


def format_of(url: str) -> str | None:
    """Returns the name of the reader for a file, by the file's name or else its first bytes; None if unknown."""
    name = url.partition("?")[0].lower()
    by_name = next((reader for reader, ends in ENDS.items() if name.endswith(ends)), None)
    return by_name or format_of_bytes(url)


def format_of_bytes(url: str) -> str | None:
    """Returns the name of the reader for a file, by its first bytes; None if unknown, or if they cannot be read."""
    try:
        fs, path = fsspec.core.url_to_fs(url)
        first = fs.cat_file(path, start=0, end=FIRST_BYTES)
    except Exception:  # the reader will report the reason
        return None
    if found := next((reader for magic, reader in MAGIC.items() if first.startswith(magic)), None):
        return found
    line, newline, _ = first.partition(b"\n")
    if not newline or b"\0" in first or line.startswith(b"{"):  # such as JSON
        return None
    return "tsv" if line.count(b"\t") > line.count(b",") else "csv" if b"," in line else None


READERS = {
    "parquet": "trainer.data.readers.parquet:ParquetReader",
    "csv": "trainer.data.readers.csv:CsvReader",
    "tsv": "trainer.data.readers.csv:CsvReader",
    "arrow": "trainer.data.readers.arrow:ArrowReader",
    "kafka": "trainer.data.stream.reader:KafkaReader",
}


def make_reader(config: DataConfig) -> Reader:
    """Makes the reader that `data.reader` names.

    Raises:
        InputError: There is no such reader, or it cannot be imported.
    """
    found = find_by_name("data.reader", config.reader, READERS)
    return found.from_config(config) if hasattr(found, "from_config") else found()
