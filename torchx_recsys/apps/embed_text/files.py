"""The files of a data set and those to write, which say what their vectors were made of."""

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainer.config.data import DataConfig
from trainer.core.errors import InputError, some_of
from trainer.core.secrets import without_secrets
from trainer.core.storage import below, digest, named, open_storage
from trainer.data.listing import LeftOutPaths, list_files
from trainer.data.readers.formats import make_reader
from trainer.rules.plain_types import STRINGS, plain_array, plain_type

MARK = b"torchx_recsys.embedded"  # key in the metadata of a written file


@dataclass(frozen=True)
class EmbeddedFile:
    """A file to read, and the file to write.

    Attributes:
        source: The file to read.
        target: The file to write.
        rows: Its rows.
        mark: What its vectors are made of: changes with the file to read, and with the arguments of the job.
    """

    source: str
    target: str
    rows: int
    mark: bytes

    def is_written(self) -> bool:
        """Returns whether the file to write is there as this job writes it.

        Raises:
            InputError: Another file is there.
        """
        with named("--out", self.target):
            fs, path = open_storage(self.target)
            if not fs.exists(path):
                return False
            with fs.open(path, "rb") as stream:
                try:
                    found = (pq.read_schema(stream).metadata or {}).get(MARK)
                except pa.ArrowInvalid:
                    found = None
        if found != self.mark:
            raise InputError(
                f"--out would replace '{without_secrets(self.target)}', which was made of other data or with other "
                "arguments; name another directory, or add --overwrite True"
            )
        return True

    def tables(
        self, column: str, vector: str, make: Callable[[pa.Array], pa.Array], progress: Callable[[int], object]
    ) -> Iterator[pa.Table]:
        """Yields the row groups with their vectors; of a file without row groups one without rows.

        Args:
            column: The column to make vectors of.
            vector: Name of the column of vectors.
            make: Returns the vectors of values.
            progress: Called with the number of rows of each row group.
        """
        with named("--source", self.source):
            fs, path = open_storage(self.source)
            with fs.open(path, "rb") as stream:
                parquet = pq.ParquetFile(stream)
                groups = range(parquet.num_row_groups)
                for table in map(parquet.read_row_group, groups) if groups else [parquet.schema_arrow.empty_table()]:
                    yield table.append_column(vector, make(plain_array(table[column])))
                    progress(table.num_rows)

    def write(self, tables: Iterator[pa.Table], local: Path) -> None:
        """Writes the file, whole or not at all; it grows at `local`, on this host."""
        first = next(tables)
        schema = first.schema.with_metadata({**(first.schema.metadata or {}), MARK: self.mark})
        with pq.ParquetWriter(local, schema, compression="zstd") as writer:
            writer.write_table(first.cast(schema), row_group_size=max(1, len(first)))
            for table in tables:
                writer.write_table(table.cast(schema), row_group_size=max(1, len(table)))
        with named("--out", self.target):
            fs, path = open_storage(self.target)
            fs.makedirs(posixpath.dirname(path))
            fs.upload(str(local), path)


def files_of(source: Sequence[str], out: str, about: Mapping[str, Any], takes_bytes: bool) -> list[EmbeddedFile]:
    """Returns the files, and refuses those that cannot be used before any is written.

    Args:
        source: Files, globs or directories.
        out: Directory to write to.
        about: The arguments that decide the vectors; `column` and `vector` name the columns.
        takes_bytes: Whether the encoder takes bytes.

    Raises:
        InputError: A file, the column or the directory cannot be used.
    """
    if not out:
        raise InputError("--out is empty; name a directory, any fsspec URL")
    with named("--out", out):
        fs, place = open_storage(out)
        fs.refuse_read_only()
        if fs.isfile(place):
            raise InputError(f"--out is '{without_secrets(out)}', a file; name a directory")
    base, found, left_out = _common_directory(source), dict[str, EmbeddedFile](), LeftOutPaths()
    for pattern in source:
        listed = list_files("--source", pattern, make_reader(DataConfig()), left_out)
        for url, size, version in zip(*(listed[name].to_pylist() for name in listed.column_names[:3]), strict=True):
            here = open_storage(url)[1]
            is_below = base and here.startswith(f"{base}/")
            name = here.removeprefix(f"{base}/") if is_below else posixpath.basename(here)
            target = below(out, name)
            if open_storage(target)[1] == here:
                raise InputError(f"--out is '{without_secrets(out)}', where --source is read; name another directory")
            if target in found and found[target].source != url:
                first, second = (without_secrets(one) for one in (found[target].source, url))
                raise InputError(f"--source has '{first}' and '{second}', both of which would be {name}; name one")
            rows = _check(url, about["column"], about["vector"], takes_bytes)
            mark = digest([about, without_secrets(url), size, version]).encode()
            found[target] = EmbeddedFile(url, target, rows, mark)
    left_out.report("--source")
    return [*found.values()]


def _check(url: str, column: str, vector: str, takes_bytes: bool) -> int:
    """Returns the rows of a file; refuses one without the column, or with the column to add."""
    shown = without_secrets(url)
    with named("--source", url):
        fs, path = open_storage(url)
        with fs.open(path, "rb") as file:
            parquet = pq.ParquetFile(file)
            schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
    if schema.names.count(column) != 1:
        raise InputError(f"--column is '{column}', of which {shown} needs one; it has: {some_of(schema.names)}")
    if vector in schema.names:
        raise InputError(f"--vector is '{vector}', a column that {shown} has already; name another")
    plain = plain_type(schema.field(column).type)
    is_text = pa.types.is_string(plain) or pa.types.is_large_string(plain)
    if plain.id not in STRINGS or not (is_text or takes_bytes):
        allowed = "texts or bytes" if takes_bytes else "texts; bytes are for an encoder of your own"
        raise InputError(
            f"--column is '{column}', of type {schema.field(column).type} in {shown}; it must hold {allowed}"
        )
    return rows


def _common_directory(source: Sequence[str]) -> str:
    """Returns the directory that all patterns are in, or that the one pattern is; empty if there is none."""
    places = []
    for pattern in source:
        names = open_storage(pattern)[1].rstrip("/").split("/")
        plain = next((number for number, name in enumerate(names) if "*" in name or "?" in name), len(names))
        is_file = plain == len(names) and names[-1].lower().endswith(".parquet")
        places.append(names[: plain - is_file])
    try:
        return posixpath.commonpath(["/".join(names) for names in places])
    except ValueError:  # of different storages
        return ""
