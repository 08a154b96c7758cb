"""Embedding tables, the dense part of a model, and all options to shard tables.

An option is a sharding type, a kernel, the columns of a shard, and the cached part of the rows. The options of all
tables are arrays, so that a thousand tables on a thousand ranks are rated at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from torchx_recsys.planner.topology import Topology

# The values of TorchRec's ShardingType.
SHARDING_TYPES = (
    "data_parallel",
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
)


@dataclass(frozen=True)
class Zipf:
    """A Zipf distribution of ids.

    Attributes:
        exponent: How fast ids get rarer after the most popular; 0 if all are equally popular.
        ids: Number of different ids.
    """

    exponent: float
    ids: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """An embedding table and its use.

    Attributes:
        name: Its name.
        rows: Its rows.
        columns: Its columns.
        hotness: Average number of ids in a sample, per feature.
        is_pooled: Whether the embeddings of a sample are pooled, not a sequence.
        value_bytes: Bytes of a value.
        state_per_value: 4-byte values of optimizer state for each value of the table.
        state_per_row: 4-byte values of optimizer state for each row of each shard.
        averages_per_value: Bytes of averages for each value.
        averages_per_row: Bytes of averages for each row of each shard.
        kinds: Sharding types that the table can have.
        kernels: Compute kernels that the table can have.
        min_columns: Minimum columns of a column shard.
        skew: Distribution of each feature's ids; empty if all rows are equally popular.
        weight_bytes: Bytes of an id's weight; 0 if ids have no weights.
        has_plain_update: Whether its CPU update is not FBGEMM's; FBGEMM's needs no copies of the rows.
        map_bytes: Bytes for each row of the map of managed ids, which the hosts of all ranks share.
    """

    name: str
    rows: int
    columns: int
    hotness: Sequence[float]
    is_pooled: bool
    value_bytes: int
    state_per_value: int
    state_per_row: int
    averages_per_value: int
    averages_per_row: int
    kinds: Sequence[str]
    kernels: Sequence[str]
    min_columns: int
    skew: Sequence[Zipf] = ()
    weight_bytes: int = 0
    has_plain_update: bool = False
    map_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class DenseMemory:
    """Bytes of the dense part of a model, the same on every rank.

    Attributes:
        weights: Its weights.
        gradients: Gradients of the trained weights, counted from the build on, as a GPU has buckets for them.
        state: State of the optimizers.
        averages: Averages of the weights.
        activations: The largest addition of a step: the embeddings that the dense part receives, with their
            gradients, values saved for backward, and temporaries.
        sample: Values of a sample without its ids: dense features, labels, groups, weights.
        build: Temporaries that initialize tables.
    """

    weights: int
    gradients: int
    state: int
    averages: int
    activations: int
    sample: int
    build: int

    @property
    def kept(self) -> int:
        """Bytes that stay between steps."""
        return self.weights + self.gradients + self.state + self.averages


@dataclass(frozen=True, kw_only=True)
class DenseWork:
    """Work of a rank's dense part in a step: forward, backward and update.

    Attributes:
        flops: Floating-point operations of matrix products.
        batched_flops: Operations of products of many small matrices, one for each sample.
        bytes: Bytes that operations read and write.
        gradients: Bytes of gradients that ranks sum.
        kernels: Number of operations.
    """

    flops: float
    batched_flops: float
    bytes: float
    gradients: float
    kernels: float


@dataclass(frozen=True)
class DensePart:
    """The dense part of a model.

    Attributes:
        memory: Its memory.
        work: Its work.
    """

    memory: DenseMemory
    work: DenseWork


KINDS = SHARDING_TYPES
DATA_PARALLEL, TABLE_WISE, ROW_WISE, COLUMN_WISE, TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID = range(len(KINDS))
ON_EVERY_RANK = (DATA_PARALLEL, ROW_WISE)
ON_WHOLE_HOSTS = (TABLE_ROW_WISE, GRID)
OF_ROWS = (ROW_WISE, TABLE_ROW_WISE, GRID)
OF_COLUMNS = (COLUMN_WISE, TABLE_COLUMN_WISE, GRID)
NEED_HOSTS = (TABLE_ROW_WISE, TABLE_COLUMN_WISE, GRID)  # on a single host these equal simpler types

KERNELS = ("dense", "fused", "fused_uvm", "fused_uvm_caching")
DENSE, FUSED, UVM, CACHED = range(len(KERNELS))
IN_HOST_MEMORY = KERNELS[UVM], KERNELS[CACHED]
CACHE_FACTORS = (0.05, 0.1, 0.2, 0.4, 0.7)  # parts of a table's rows that the GPU caches; TorchRec's default is 0.2
LANES = 4  # FBGEMM's kernels require multiples of four columns


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
    """Returns the options of all tables; a table that cannot be sharded as allowed has none."""
    found = [(number, *option) for number, table in enumerate(tables) for option in _options(table, topology)]
    *numbers, cached = zip(*found, strict=True) if found else [()] * 5
    table, kind, kernel, columns = (np.array(column, dtype=int) for column in numbers)
    rows_of_table = np.array([one.rows for one in tables])[table]
    pieces = np.array([one.columns for one in tables])[table] // columns
    parts = np.select([kind == ROW_WISE, np.isin(kind, ON_WHOLE_HOSTS)], [topology.ranks, topology.per_host], 1)
    shards = np.where(kind == DATA_PARALLEL, topology.ranks, pieces * parts)
    return Options(table, kind, kernel, columns, np.array(cached), pieces, shards, -(-rows_of_table // parts))


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
        # The cut is the same on any number of ranks, so that a run resumes elsewhere with its row-wise state unchanged.
        return cut[:1] or [one for one in widths if one == table.columns]
    return [columns for columns in cut if table.columns // columns <= places(kind, topology)]


def places(kind: int, topology: Topology) -> int:
    """Returns how many column shards fit side by side, each on its own ranks."""
    return {COLUMN_WISE: topology.ranks, TABLE_COLUMN_WISE: topology.per_host, GRID: topology.hosts}[kind]


@dataclass(frozen=True, kw_only=True)
class PlannedTable:
    """The placement of a table.

    Attributes:
        rows: Rows of the table.
        columns: Columns of the table.
        kind: Its sharding type.
        kernel: Its compute kernel.
        shard_columns: Columns of a shard.
        ranks: The rank of each shard: all row shards of the first columns, then of the next.
        cached: Part of the rows cached on the GPU; unset for kernels without a cache.
    """

    rows: int
    columns: int
    kind: str
    kernel: str
    shard_columns: int
    ranks: Sequence[int]
    cached: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the shards make up the table."""
        pieces, left = divmod(self.columns, self.shard_columns)
        return not left and len(self.ranks) % pieces == 0

    def blocks(self) -> list[tuple[list[int], list[int]]]:
        """Returns offset and size of every shard; the last row shards may be short, or empty."""
        pieces = self.columns // self.shard_columns
        parts = len(self.ranks) // pieces
        block = -(-self.rows // parts)
        starts = [min(part * block, self.rows) for part in range(parts + 1)]
        return [
            ([start, column], [stop - start, self.shard_columns])
            for column in range(0, self.columns, self.shard_columns)
            for start, stop in pairwise(starts)
        ]


def options_of(planned: Sequence[PlannedTable]) -> Options:
    """Returns the options that a plan chose, one for each table."""
    kind = np.array([KINDS.index(table.kind) for table in planned])
    columns = np.array([table.shard_columns for table in planned])
    pieces = np.array([table.columns for table in planned]) // columns
    shards = np.array([len(table.ranks) for table in planned])
    parts = np.where(np.isin(kind, OF_ROWS), shards // pieces, 1)
    return Options(
        table=np.arange(len(planned)),
        kind=kind,
        kernel=np.array([KERNELS.index(table.kernel) for table in planned]),
        columns=columns,
        cached=np.array([table.cached or 0.0 for table in planned]),
        pieces=pieces,
        shards=shards,
        rows=-(-np.array([table.rows for table in planned]) // parts),
    )


def ranges(ranks: Sequence[int]) -> Iterator[str]:
    """Yields runs of ranks, such as `0-3` and `8`."""
    start = 0
    for stop in range(1, len(ranks) + 1):
        if stop == len(ranks) or ranks[stop] != ranks[stop - 1] + 1:
            yield f"{ranks[start]}-{ranks[stop - 1]}" if stop - start > 1 else str(ranks[start])
            start = stop
