"""Every way to shard every table: sharding type, kernel, columns of a shard, cached part of the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from torchx_recsys.planner.problem import SHARDING_TYPES, Table, Topology

KINDS = SHARDING_TYPES
DATA_PARALLEL, TABLE_WISE, ROW_WISE, COLUMN_WISE, TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID = range(len(KINDS))
ON_EVERY_RANK = (DATA_PARALLEL, ROW_WISE)
ON_WHOLE_HOSTS = (TABLE_ROW_WISE, GRID)
OF_ROWS = (ROW_WISE, TABLE_ROW_WISE, GRID)
OF_COLUMNS = (COLUMN_WISE, TABLE_COLUMN_WISE, GRID)
NEED_HOSTS = (TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID)  # on a single host these equal shorter-named types

KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching")
DENSE, FUSED, UVM, CACHED = range(len(KERNELS))
CACHE_FACTORS = (0.05, 0.1, 0.2, 0.4, 0.7)  # parts of a table's rows that the GPU caches; TorchRec's default is 0.2
LANES = 4  # FBGEMM's kernels take columns in fours


@dataclass(frozen=True)
class Options:
    """Options of all tables, in the order of the tables.

    Attributes:
        table: Number of the table.
        kind: Number of the sharding type in KINDS.
        kernel: Number of the kernel in KERNELS.
        columns: Columns of a shard.
        cached: Cached part of the rows; 0 for other kernels.
        pieces: Number of shards side by side, each with some of the columns.
        shards: Number of all shards; one per rank if on every rank.
        rows: Rows of the largest shard.
    """

    table: np.ndarray
    kind: np.ndarray
    kernel: np.ndarray
    columns: np.ndarray
    cached: np.ndarray
    pieces: np.ndarray
    shards: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.table)


def all_options(tables: Sequence[Table], topology: Topology) -> Options:
    """Returns the options of tables; a table that cannot be sharded as allowed has none."""
    found = [(number, *option) for number, table in enumerate(tables) for option in _options(table, topology)]
    table, kind, kernel, columns, cached = (np.array(column) for column in zip(*found, strict=True))
    rows_of_table = np.array([one.rows for one in tables])[table]
    pieces = np.array([one.columns for one in tables])[table] // columns
    parts = np.select([kind == ROW_WISE, np.isin(kind, ON_WHOLE_HOSTS)], [topology.ranks, topology.per_host], 1)
    shards = np.where(kind == DATA_PARALLEL, topology.ranks, pieces * parts)
    return Options(table, kind, kernel, columns, cached, pieces, shards, -(-rows_of_table // parts))


def has_options(table: Table, topology: Topology) -> bool:
    """Returns whether a table can be sharded as allowed."""
    return any(True for _ in _options(table, topology))


def _options(table: Table, topology: Topology) -> Iterator[tuple[int, int, int, float]]:
    for kind in _kinds(table, topology):
        for columns in _widths(table, kind, topology):
            for kernel in _kernels(table, kind, topology):
                for cached in CACHE_FACTORS if kernel == CACHED else (0.0,):
                    yield kind, kernel, columns, cached


def _kinds(table: Table, topology: Topology) -> list[int]:
    kinds = [KINDS.index(kind) for kind in table.kinds]
    if topology.hosts > 1 or all(kind in NEED_HOSTS for kind in kinds):
        return kinds
    return [kind for kind in kinds if kind not in NEED_HOSTS]


def _kernels(table: Table, kind: int, topology: Topology) -> list[int]:
    if kind == DATA_PARALLEL:
        return [DENSE] if not table.kernels or "dense" in table.kernels else []
    possible = (FUSED, UVM, CACHED) if topology.on_gpu else (FUSED,)
    return [kernel for kernel in possible if not table.kernels or KERNELS[kernel] in table.kernels]


def _widths(table: Table, kind: int, topology: Topology) -> list[int]:
    """Returns the numbers of columns that a shard of a sharding type can have."""
    if kind == DATA_PARALLEL:
        return [table.columns]
    if kind not in OF_COLUMNS:
        return [table.columns] if table.columns % LANES == 0 else []
    widths = [one for one in range(LANES, table.columns + 1, LANES) if table.columns % one == 0]
    cut = [columns for columns in widths if table.min_columns <= columns < table.columns]
    if all(KINDS.index(one) in OF_COLUMNS for one in table.kinds):
        # The same cut on any number of ranks lets a run resume elsewhere with its row-wise state unchanged.
        return cut[:1] or [one for one in widths if one == table.columns]
    return [columns for columns in cut if table.columns // columns <= places(kind, topology)]


def places(kind: int, topology: Topology) -> int:
    """Returns how many column shards fit side by side, each on its own ranks."""
    return {COLUMN_WISE: topology.ranks, TABLE_COLUMN_WISE: topology.per_host, GRID: topology.hosts}[kind]
