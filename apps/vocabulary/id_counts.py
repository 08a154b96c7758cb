"""Counts ids in bounded memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from trainer.core.splitmix import mix
from trainer.rules.modulo import modulo
from trainer.rules.plain_types import is_string

PARTITIONS = 64


class IdCounts:
    """Counts of ids: in memory up to a limit, then in files, partitioned by a hash of the id.

    Counting takes at most about twice the limit. Reading the counts takes a 64th of all distinct ids at a time.

    Args:
        folder: A local directory for the files.
        limit_bytes: Largest size of the counts in memory, 16 bytes for each distinct integer.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit = folder, limit_bytes
        self._waiting: list[pa.Table] = []
        self._spills: list[Path] = []

    def add(self, ids: pa.Array) -> None:
        """Counts ids, integers or strings; nulls do not count."""
        ids = plain_ids(ids).drop_null()
        self._waiting.append(_grouped(pa.table({"id": ids, "count": pa.array(np.ones(len(ids), np.int64))})))
        if self._bytes() > self._limit:
            self._waiting = [_grouped(pa.concat_tables(self._waiting))]
            if self._bytes() > self._limit / 2:  # else grouping has freed enough memory
                self._spill()

    def parts(self) -> Iterator[pa.Table]:
        """Yields tables of `id`, int64 or bytes, and `count`; no two tables have an id in common."""
        if not self._spills:
            if self._waiting:
                yield _grouped(pa.concat_tables(self._waiting))
            return
        self._spill()
        for part in range(PARTITIONS):
            yield _grouped(pa.concat_tables([_read_part(file, part) for file in self._spills]))

    def _bytes(self) -> int:
        return sum(table.nbytes for table in self._waiting)

    def _spill(self) -> None:
        if not self._waiting:
            return
        table = _grouped(pa.concat_tables(self._waiting))
        partition = _partition(table["id"].combine_chunks())
        file = self._folder / f"{len(self._spills)}.arrow"
        with pa.ipc.new_file(file, table.schema) as sink:
            for part in range(PARTITIONS):
                chosen = table.filter(pa.array(partition == part)).combine_chunks()
                columns = [column.combine_chunks() for column in chosen.columns]
                sink.write_batch(pa.RecordBatch.from_arrays(columns, schema=table.schema))
        self._spills.append(file)
        self._waiting = []


def plain_ids(ids: pa.Array) -> pa.Array:
    """Returns integers as int64, where large unsigned integers wrap, and strings as bytes, which need not be text."""
    if pa.types.is_dictionary(ids.type):
        ids = ids.dictionary_decode()
    return ids.cast(pa.large_binary()) if is_string(ids.type) else ids.cast(pa.int64(), safe=False)


def _grouped(table: pa.Table) -> pa.Table:
    return table.group_by("id").aggregate([("count", "sum")]).rename_columns(["id", "count"])


def _partition(ids: pa.Array) -> np.ndarray:
    """Returns the partition of each id, `[N]`."""
    # hash() of a text differs between processes, which does not matter here: it only spreads the ids of this process.
    text = is_string(ids.type)
    keys = np.fromiter(map(hash, ids.to_pylist()), np.int64, len(ids)) if text else ids.to_numpy()
    return modulo(mix(keys), np.uint64(PARTITIONS))


def _read_part(file: Path, part: int) -> pa.Table:
    with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as opened:
        return pa.Table.from_batches([opened.get_batch(part)])
