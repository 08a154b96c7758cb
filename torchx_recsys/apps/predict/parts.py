"""Parts of a job, which ranks take in turn. Each file is written whole or not at all; a manifest lists them."""

import io
import posixpath
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.core.console import plural
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import PARTIAL, named
from trainer.data.dataset import RowGroup
from trainer.data.epoch_order import Lanes, RowRange, RowSlice, row_slices
from trainer.data.file_outlines import FOOTER_THREADS

MANIFEST = "manifest.json"
NAME = re.compile(r"part-\d{5,}-of-\d{5,}\.parquet")
ROW_GROUP_ROWS = 65_536  # the rows of a shuffle window, so that a run can train on these files

# With the default, 1 MiB, ids and outputs of 65,536 rows would all get a dictionary, although they hardly repeat:
# writing would take 1.6 times as long, and a sixth more space.
DICTIONARY_BYTES = 32_768

# Integers that span less than this are stored as differences of few bits (DELTA_BINARY_PACKED). With 26 columns of ids
# below 100,000 among 42, a row is written in 0.43 us in place of 0.77 and read in 0.12 in place of 0.40, and the files
# are a sixth smaller. Integers that span more, such as hashes, would take more space than in a dictionary.
PACKED_SPAN = 1 << 24


# Values of which the first so many hardly repeat get no dictionary, which would soon be full and given up. 13 columns
# of numbers take half of the time to write, and no more bytes.
FIRST_VALUES = 1024


@dataclass(frozen=True, kw_only=True)
class PartLanes(Lanes):
    """A lane for each rank, with the rank's parts of a data set in order; no step has rows of two parts.

    Attributes:
        parts: The parts of each lane. All but the last part of a lane are whole steps.
    """

    parts: tuple[tuple[RowRange, ...], ...]

    @cached_property
    def lengths(self) -> np.ndarray:
        """The samples of each lane, `[L]`."""
        return np.array([sum(stop - start for start, stop in parts) for parts in self.parts])

    @property
    def steps(self) -> int:
        """Steps until the longest lane ends."""
        return -(-int(self.lengths.max()) // self.samples_per_step)

    def row_slices(self, order: list[RowGroup], ends: np.ndarray, lane: int) -> list[RowSlice]:
        """Returns the rows of a lane; `ends` is `ends_of(order)`."""
        return [one for part in self.parts[lane] for one in row_slices(order, ends, *part)]


def cut_into_parts(rows: int, size: int) -> list[RowRange]:
    """Returns parts of `size` rows of a data set; the last part may be shorter."""
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]


def lanes_of(parts: list[RowRange], world_size: int, batch_size: int) -> PartLanes:
    """Returns lanes in which the ranks take the parts in turn.

    Args:
        parts: The parts. All but the last have a multiple of `batch_size` rows.
        world_size: Number of ranks.
        batch_size: Rows of a rank in a step.
    """
    return PartLanes(
        rows=sum(stop - start for start, stop in parts),
        lanes=world_size,
        global_batch_size=batch_size * world_size,
        parts=tuple(tuple(parts[rank::world_size]) for rank in range(world_size)),
    )


class PartFiles:
    """The files of parts in a directory.

    Args:
        directory: The directory.
        rows: Rows of all parts.
        size: Rows of a part.
        names: Names of the columns in the files; empty to keep the names of the tables.
        of: What is counted in place of rows, if each of it has any number of rows in the files.

    Attributes:
        parts: The parts.
    """

    def __init__(
        self, directory: RunDirectory, rows: int, size: int, names: Sequence[str] = (), of: str = "row"
    ) -> None:
        self._directory, self._names, self._of = directory, names, of
        self.parts: list[RowRange] = cut_into_parts(rows, size)

    def __str__(self) -> str:
        return plural(len(self.parts), "part")

    def name(self, number: int) -> str:
        """Returns the name of a part's file."""
        return f"part-{number:05d}-of-{len(self.parts):05d}.parquet"

    def missing(self) -> list[int]:
        """Returns the numbers of parts without a file, or with a truncated one."""
        there = set(part_names(self._directory))
        candidates = [number for number in range(len(self.parts)) if self.name(number) in there]
        with ThreadPoolExecutor(FOOTER_THREADS) as pool:
            whole = dict(zip(candidates, pool.map(self._is_whole, candidates), strict=True))
        return [number for number in range(len(self.parts)) if not whole.get(number)]

    def _is_whole(self, number: int) -> bool:
        # On storage that moves files by copying them, a killed job can leave a truncated file.
        start, stop = self.parts[number]
        try:
            with self._directory.fs.open(self._directory.path(self.name(number)), "rb") as file:
                found = pq.read_metadata(file).num_rows
                return self._of != "row" or found == stop - start
        except pa.ArrowException:
            return False

    def row_groups(self, number: int, batch_size: int) -> list[RowRange]:
        """Returns the bounds of the row groups of a part; each has the most whole batches that fit."""
        start, stop = self.parts[number]
        size = max(1, ROW_GROUP_ROWS // batch_size) * batch_size
        return [(first, min(first + size, stop)) for first in range(start, stop, size)]

    def open(self, number: int) -> "PartFile":
        """Returns the file of a part, to fill it."""
        start, stop = self.parts[number]
        return PartFile(stop - start, self._names, partial(self._save, self.name(number)))

    def _save(self, name: str, content: bytes) -> None:
        with named(self._directory.key, self._directory.url):
            self._directory.fs.write(self._directory.path(name), content)

    def commit(self, facts: dict[str, Any]) -> None:
        """Writes the manifest once all parts exist, and removes the remains of interrupted jobs.

        Args:
            facts: Entries of the manifest besides the parts.
        """
        of = f"{self._of}s"
        files = [{"file": self.name(number), of: stop - start} for number, (start, stop) in enumerate(self.parts)]
        for name in _names(self._directory):
            if ".parquet" in name and name.endswith(PARTIAL):
                with suppress(FileNotFoundError):
                    self._directory.fs.rm_file(self._directory.path(name))
        manifest = facts | {of: self.parts[-1][1], "parts": files}
        self._directory.write_json(MANIFEST, manifest)


class PartFile:
    """The file of a part: filled in memory, and written once full.

    Args:
        rows: Rows of the part.
        names: Names of the columns; empty to keep the names of the tables.
        save: Writes the bytes of the file.
    """

    def __init__(self, rows: int, names: Sequence[str], save: Callable[[bytes], None]) -> None:
        self._left, self._names, self._save = rows, names, save
        self._sink = io.BytesIO()  # hands over its bytes without a copy
        self._writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table, rows: int | None = None) -> None:
        """Adds the next rows.

        Args:
            table: The rows.
            rows: How many rows of the part they are of. Unset: each is one.

        Raises:
            InputError: The full part cannot be written.
        """
        table = table.rename_columns([*self._names]) if self._names else table
        self._writer = self._writer or _writer(self._sink, table)
        self._writer.write_table(table, ROW_GROUP_ROWS)
        self._left -= len(table) if rows is None else rows
        if not self._left:
            self._writer.close()
            self._save(self._sink.getvalue())


def _writer(sink: io.BytesIO, table: pa.Table) -> pq.ParquetWriter:
    """Returns a writer of tables, given the first."""
    outline = io.BytesIO()
    pq.write_table(table.schema.empty_table(), outline)
    schema = pq.read_metadata(outline).schema
    paths = [schema.column(place).path for place in range(len(schema))]  # of columns, and of the elements of lists
    columns = [*zip(table.schema, table.columns, strict=True)]
    packed = {field.name for field, column in columns if _is_packed(field, column)}
    others = [one for one in columns if one[0].name not in packed]
    without = packed | {field.name for field, column in others if _hardly_repeats(field, column)}
    return pq.ParquetWriter(
        sink,
        table.schema,
        use_dictionary=[path for path in paths if path not in without],
        dictionary_pagesize_limit=DICTIONARY_BYTES,
        column_encoding=dict.fromkeys(packed, "DELTA_BINARY_PACKED"),
    )


def _is_packed(field: pa.Field, column: pa.ChunkedArray) -> bool:
    if not pa.types.is_integer(field.type) or column.null_count == len(column):
        return False
    ends = pc.min_max(column).as_py()  # pyrefly: ignore[missing-attribute]
    return ends["max"] - ends["min"] < PACKED_SPAN


def _hardly_repeats(field: pa.Field, column: pa.ChunkedArray) -> bool:
    if not (pa.types.is_integer(field.type) or pa.types.is_float32(field.type) or pa.types.is_float64(field.type)):
        return False
    first = column[:FIRST_VALUES]
    return 2 * pc.count_distinct(first).as_py() > len(first)  # pyrefly: ignore[missing-attribute]


def part_names(directory: RunDirectory) -> list[str]:
    """Returns the names of the parts in a directory."""
    return sorted(name for name in _names(directory) if NAME.fullmatch(name))


def _names(directory: RunDirectory) -> list[str]:
    try:
        return [posixpath.basename(path) for path in directory.fs.ls(directory.path(), detail=False)]
    except FileNotFoundError:
        return []
