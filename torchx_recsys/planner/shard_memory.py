"""Memory that shards take on their ranks, by kind, for many options at once.

Counts memory kept between steps, and memory that a step needs for a while. TorchRec's own estimate leaves out most of
this: real runs take up to three times as much.
"""

from collections.abc import Callable, Sequence

import numpy as np

from torchx_recsys.planner.tables import CACHED, DATA_PARALLEL, OF_ROWS, ON_WHOLE_HOSTS, ROW_WISE, UVM, Options, Table
from torchx_recsys.planner.topology import Topology

INT, FLOAT = 4, 4  # bytes of an id, and of an embedding's value, for any precision of the table
STATE_BYTES = 4  # bytes of a value of a state or an average, for any precision of the table
# Bytes of the map of rows, and of an id with its time, in FBGEMM's cache.
CACHE_BYTES_PER_ROW, CACHE_BYTES_PER_SLOT = 4, 16
# Copies of a shard's ids at once: received for this batch, received for the next batch, and two for the lookup.
COPIES_OF_IDS = 4
SENT = 2  # copies of pooled embeddings: the lookup's output, and the send buffer
PLAIN_COPIES, STATE_COPIES = 4, 2  # copies of touched rows in an update by plain operations, and of their state
PLAIN_SORTED_IDS = 24  # bytes of an id in such an update, with its place
AVERAGED_COPIES = 5  # copies of touched rows while their averages are updated
SORTED_IDS = 48  # bytes per id that FBGEMM's backward on a GPU needs to sort ids

KEPT = ("tables", "state", "averages", "ids")
# The least memory that a shard adds to the kept memory in each phase of a step.
PHASES = {
    "exchange": ("exchanged", "buckets"),
    "dense": ("buckets",),
    "backward": ("buckets", "replicated"),
    "update": ("looked_up", "buckets"),
}
KINDS = ("tables", "state", "averages", "buckets", "replicated", "ids", "exchanged", "looked_up", "update")
LARGEST_OF_RANK = ("update",)  # a rank needs only its largest, as tables update one after the other


def memory_by_kind(
    options: Options, tables: Sequence[Table], topology: Topology, rows: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Returns the bytes of a shard of each option by kind, on the GPU and on the host, `[O, 2]` each.

    Kinds: `tables`, `state` and `averages` are kept. `replicated` is the gradient of a table that every rank holds, and
    `buckets` are DistributedDataParallel's for it, kept on a GPU. `ids` belong to batches in flight. `exchanged` are
    embeddings on their way to other ranks. `looked_up` are gradients of embeddings in backward, and `update`
    temporaries of one table's update.

    Args:
        options: The options.
        tables: The tables.
        topology: The topology of identical ranks.
        rows: Rows of the shard, `[O]`; unset for the largest.
    """
    rows = options.rows if rows is None else rows
    of_table = {
        key: np.array([getattr(table, key) for table in tables], dtype=dtype)[options.table]
        for key, dtype in OF_TABLE.items()
    }
    values = rows * options.columns
    weights = values * of_table["value_bytes"]
    state = STATE_BYTES * (values * of_table["state_per_value"] + rows * of_table["state_per_row"])
    averages = values * of_table["averages_per_value"] + rows * of_table["averages_per_row"]
    replicated = options.kind == DATA_PARALLEL
    found = _of_step(options, tables, topology, rows, of_table)
    gradient = np.where(replicated, weights, 0)
    found |= {
        "averages": averages + found["noted"],
        "buckets": gradient * topology.on_gpu,
        "replicated": gradient,
        # Squares of the gradient, one table after the other; on a GPU the buckets of all tables are more.
        "update": np.maximum(found["update"], gradient * (not topology.on_gpu)),
    }
    on_device = {kind: _on_device(found[kind], topology) for kind in KINDS if kind in found}
    return {
        "tables": _weights(options, weights, rows, topology),
        "state": _beside(options, state, topology),
    } | on_device


OF_TABLE = {
    "value_bytes": int,
    "state_per_value": int,
    "state_per_row": int,
    "averages_per_value": int,
    "averages_per_row": int,
    "is_pooled": bool,
    "weight_bytes": int,
    "has_plain_update": bool,
}


def _of_step(
    options: Options, tables: Sequence[Table], topology: Topology, rows: np.ndarray, of_table: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Returns the bytes that a step needs for a shard, `[O]` each; 0 without rows."""
    kind, columns = options.kind, options.columns
    replicated, of_rows = kind == DATA_PARALLEL, np.isin(kind, OF_ROWS)
    divisor = np.select([kind == ROW_WISE, np.isin(kind, ON_WHOLE_HOSTS)], [topology.ranks, topology.per_host], 1)
    samples = topology.batch_size * np.where(replicated, 1, topology.ranks)
    ids = np.array([sum(table.hotness) for table in tables])[options.table] * samples / divisor
    bags = np.array([len(table.hotness) for table in tables])[options.table] * samples
    embeddings = FLOAT * columns * np.where(of_table["is_pooled"], bags, ids)
    received = INT * (ids + bags) + of_table["weight_bytes"] * ids
    in_flight = np.where(replicated, 2, COPIES_OF_IDS - 1) * received + np.where(of_rows, INT * bags, 0)
    leaves = ~replicated & (topology.ranks > 1)
    touched = FLOAT * columns * _unique(ids, rows)
    plain = of_table["has_plain_update"] & (not topology.on_gpu) & ~replicated
    copies = PLAIN_COPIES + STATE_COPIES * of_table["state_per_value"]
    averaged = (of_table["averages_per_row"] > 0) & ~replicated
    found = {
        "ids": in_flight,
        "exchanged": np.where(leaves, SENT * embeddings + received, 0),
        "looked_up": np.where(leaves, embeddings, 0),
        "update": np.maximum(
            np.where(plain, PLAIN_SORTED_IDS * ids + copies * touched, SORTED_IDS * ids * topology.on_gpu),
            np.where(averaged, AVERAGED_COPIES * touched, 0),
        ),
        "noted": np.where(averaged, touched, 0),
    }
    return {name: np.where(rows > 0, size, 0) for name, size in found.items()}


def _unique(ids: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the number of rows that uniformly drawn ids touch."""
    rows = np.maximum(rows, 1)
    return np.where(rows > 1, rows * -np.expm1(ids * np.log1p(-1 / np.maximum(rows, 2))), np.minimum(ids, 1))


def _on_device(size: np.ndarray, topology: Topology) -> np.ndarray:
    nothing = np.zeros(len(size))
    return np.stack([size, nothing] if topology.on_gpu else [nothing, size], axis=1)


def _beside(options: Options, size: np.ndarray, topology: Topology) -> np.ndarray:
    """Returns bytes that lie where the table is: on the host for a table on the host."""
    on_host = np.isin(options.kernel, (UVM, CACHED)) | (not topology.on_gpu)
    return np.stack([np.where(on_host, 0.0, size), np.where(on_host, size, 0.0)], axis=1)


def _weights(options: Options, weights: np.ndarray, rows: np.ndarray, topology: Topology) -> np.ndarray:
    found = _beside(options, weights, topology)
    per_row = CACHE_BYTES_PER_ROW + options.cached * CACHE_BYTES_PER_SLOT
    cache = np.ceil(weights * options.cached) + np.ceil(rows * per_row)
    found[:, 0] += np.where((options.kernel == CACHED) & topology.on_gpu, cache, 0)
    return found


def shard_memory(
    options: Options, tables: Sequence[Table], topology: Topology, rows: np.ndarray | None = None
) -> np.ndarray:
    """Returns the most bytes that a shard of each option adds to its rank, `[O, 2]`; arguments as above."""
    kinds = memory_by_kind(options, tables, topology, rows)
    kept = sum(kinds[kind] for kind in (*KEPT, "buckets", "replicated"))
    return kept + np.maximum(kinds["exchanged"], kinds["looked_up"] + kinds["update"])


def memory_in_phase(
    phase: str, options: Options, tables: Sequence[Table], topology: Topology, rows: np.ndarray | None = None
) -> np.ndarray:
    """Returns the least bytes that a shard of each option has in a phase, `[O, 2]`; arguments as above."""
    kinds = memory_by_kind(options, tables, topology, rows)
    added = (kinds[kind] for kind in PHASES[phase])
    return sum(added, sum((kinds[kind] for kind in KEPT), np.zeros((len(options), 2))))


def sum_of_shards(
    options: Options, tables: Sequence[Table], topology: Topology, of_shard: Callable[..., np.ndarray]
) -> np.ndarray:
    """Returns the sum of an estimate over all shards of each option, `[O, 2]`: the last row shard may be smaller."""
    rows_of_table = np.array([table.rows for table in tables])[options.table]
    whole, left = np.divmod(rows_of_table, options.rows)
    of_rows = np.isin(options.kind, OF_ROWS)
    whole, left = np.where(of_rows, whole, 1), np.where(of_rows, left, 0)
    copies = np.where(options.kind == DATA_PARALLEL, topology.ranks, options.pieces)
    last = np.where(left[:, None] > 0, of_shard(options, tables, topology, left), 0)
    return copies[:, None] * (whole[:, None] * of_shard(options, tables, topology) + last)
