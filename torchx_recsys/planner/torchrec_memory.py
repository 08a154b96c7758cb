"""TorchRec's estimate of a shard's memory, for many options at once, with state and averages as allocated."""

from collections.abc import Callable, Sequence

import numpy as np

from torchx_recsys.planner.options import CACHED, DATA_PARALLEL, OF_ROWS, ON_WHOLE_HOSTS, ROW_WISE, UVM, Options
from torchx_recsys.planner.problem import Table, Topology
from torchx_recsys.planner.torchrec_costs import ID_BYTES, lookups

STATE_BYTES = 4  # of each value of a state or an average, whatever the table's precision
CACHE_BYTES_PER_ROW, CACHE_BYTES_PER_SLOT = 4, 16  # of FBGEMM's cache: a map of rows, and ids and times of its slots


def shard_bytes(
    options: Options, tables: Sequence[Table], topology: Topology, rows: np.ndarray | None = None
) -> np.ndarray:
    """Returns the bytes of a shard of each option, on the GPU and on the host, `[O, 2]`.

    Args:
        options: The options.
        tables: The tables.
        topology: The topology of identical ranks.
        rows: Rows of the shard, `[O]`; unset for the largest.
    """
    rows = options.rows if rows is None else rows
    values = rows * options.columns
    weights = values * _of_table(tables, "value_bytes")[options.table]
    cached, on_host = options.kernel == CACHED, np.isin(options.kernel, (UVM, CACHED))
    if not topology.on_gpu:
        on_host = np.ones(len(options), dtype=bool)
    state = STATE_BYTES * (
        values * _of_table(tables, "state_per_value")[options.table]
        + rows * _of_table(tables, "state_per_row")[options.table]
    )
    averages = (
        values * _of_table(tables, "averages_per_value")[options.table]
        + rows * _of_table(tables, "averages_per_row")[options.table]
    )
    exchanged = np.where(rows > 0, _exchanged(options, tables, topology), 0)
    if not topology.on_gpu:
        return np.stack([np.zeros(len(options)), weights + state + averages + exchanged], axis=1)
    cache = np.ceil(weights * options.cached) + np.ceil(
        rows * (CACHE_BYTES_PER_ROW + options.cached * CACHE_BYTES_PER_SLOT)
    )
    gpu = np.where(on_host, np.where(cached, cache, 0), weights + state) + averages + exchanged
    return np.stack([gpu, np.where(on_host, weights + state, 0)], axis=1)


def _exchanged(options: Options, tables: Sequence[Table], topology: Topology) -> np.ndarray:
    """Returns the bytes of a batch's ids and embeddings that a shard receives and sends, `[O]`."""
    ids, embeddings = (of_table[options.table] for of_table in lookups(tables, topology.batch_size))
    kind, pooled = options.kind, _of_table(tables, "is_pooled")[options.table]
    divisor = np.select([kind == ROW_WISE, np.isin(kind, ON_WHOLE_HOSTS)], [topology.ranks, topology.per_host], 1)
    copies = np.where(kind == DATA_PARALLEL, 1, topology.ranks)
    embeddings = np.where(np.isin(kind, OF_ROWS) & ~pooled, embeddings / divisor, embeddings)
    value = _of_table(tables, "value_bytes")[options.table]
    return np.ceil(ids / divisor * copies * ID_BYTES) + np.ceil(embeddings * copies * options.columns * value)


def sum_of_shards(
    options: Options, tables: Sequence[Table], topology: Topology, of_shard: Callable[..., np.ndarray]
) -> np.ndarray:
    """Returns the sum of an estimate over all shards of each option, `[O, 2]`: the last row shard may be smaller."""
    rows_of_table = _of_table(tables, "rows")[options.table]
    whole, left = np.divmod(rows_of_table, options.rows)
    of_rows = np.isin(options.kind, OF_ROWS)
    whole, left = np.where(of_rows, whole, 1), np.where(of_rows, left, 0)
    copies = np.where(options.kind == DATA_PARALLEL, topology.ranks, options.pieces)
    last = np.where(left[:, None] > 0, of_shard(options, tables, topology, left), 0)
    return copies[:, None] * (whole[:, None] * of_shard(options, tables, topology) + last)


def _of_table(tables: Sequence[Table], key: str) -> np.ndarray:
    return np.array([getattr(table, key) for table in tables])
