"""Measures FBGEMM's kernels: lookups by bag and byte, updates by id, row and byte, sorting of ids by shard."""

from dataclasses import dataclass

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import ComputeDevice, EmbeddingLocation
from torch import Tensor, nn
from torchrec.optim import RowWiseAdagrad

from torchx_recsys.apps.calibrate.timing import explain, nanoseconds
from torchx_recsys.planner.step_time import GRADIENT_BYTES, LEAST_BYTES
from trainer.optim.table_kernels import TableKernel

VALUE_BYTES = 4
TABLES = 4  # number of tables in a lookup kernel
SHARDS, ROWS_OF_SHARD, HOTNESS = 2, 10_000, 16  # the shape of the tables for sorting ids by row shard


@dataclass(frozen=True)
class Case:
    """A lookup to measure: bags, ids in each bag, columns of the table, and the fraction of its rows in use."""

    bags: int
    ids: int
    columns: int
    part: float = 1.0


def _cases(bags: int) -> list[Case]:
    """Returns lookups that differ in one thing at a time."""
    return [
        Case(bags, 1, 32),
        Case(2 * bags, 1, 32),
        Case(bags, 8, 32),
        Case(bags, 8, 128),
        Case(bags, 1, 128),
        Case(bags, 8, 64, part=0.01),
        Case(bags, 8, 16, part=0.01),
        Case(4 * bags, 1, 8),
    ]


def table_speeds(bags: int, table_bytes: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Returns the speeds of lookups and updates, by the names in `Speeds`.

    Args:
        bags: Bags of a lookup.
        table_bytes: Bytes of all tables of a kernel, more than caches hold.
        device: Device of the tables.
        repeats: Runs of each lookup.
    """
    counts, times = [], []
    for case in _cases(bags):
        counted, measured = _measure(case, table_bytes, device, repeats)
        counts.append(counted)
        times.append(measured)
    # Each call has a fixed cost, the same on all ranks and at every step, so it is part of the constant.
    of_lookup, of_update = zip(*counts, strict=True)
    forward, backward = zip(*times, strict=True)
    bag, lookup_byte, _ = explain([(*count, 1.0) for count in of_lookup], forward)
    found = explain([(*count, 1.0) for count in of_update], backward)
    return {"bag": bag, "lookup_byte": lookup_byte, "id": found[0], "unique_row": found[1], "update_byte": found[2]}


Counts = tuple[tuple[float, ...], tuple[float, ...]]


def input_speeds(bags: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Returns the speed of sorting a batch's ids by row shard, by its name in `Speeds`.

    Args:
        bags: Bags of a table.
        device: Where to measure.
        repeats: Runs.
    """
    ids = torch.randint(SHARDS * ROWS_OF_SHARD, (TABLES * bags * HOTNESS,), dtype=torch.int32, device=device)
    lengths = torch.full((TABLES * bags,), HOTNESS, dtype=torch.int32, device=device)
    blocks = torch.full((TABLES,), ROWS_OF_SHARD, dtype=torch.int32, device=device)

    def sort() -> None:
        torch.ops.fbgemm.block_bucketize_sparse_features(
            lengths, ids, bucketize_pos=False, sequence=False, block_sizes=blocks, my_size=SHARDS
        )

    return {"bucketed_id": nanoseconds(sort, device, repeats) / len(ids)}


def _measure(case: Case, table_bytes: int, device: torch.device, repeats: int) -> tuple[Counts, tuple[float, float]]:
    """Returns the counts of a lookup and of its update, and the nanoseconds of each."""
    rows = max(1, table_bytes // (TABLES * case.columns * VALUE_BYTES))
    kernel = _kernel(rows, case.columns, device)
    used = max(1, int(rows * case.part))
    ids = torch.randint(used, (TABLES * case.bags * case.ids,), generator=torch.Generator().manual_seed(0)).to(device)
    offsets = torch.arange(0, len(ids) + 1, case.ids, device=device)
    gradient = torch.ones(case.bags, TABLES * case.columns, device=device)
    pooled: list[Tensor] = []

    def look_up() -> None:
        pooled[:] = [kernel(ids, offsets)]

    def update() -> None:
        pooled[0].backward(gradient, retain_graph=True)

    times = nanoseconds(look_up, device, repeats), nanoseconds(update, device, repeats)
    unique = sum(len(torch.unique(of_table)) for of_table in ids.chunk(TABLES))
    row = case.columns * VALUE_BYTES
    of_update = GRADIENT_BYTES * len(ids) * case.columns + 2 * unique * row
    lookup = float(TABLES * case.bags), float(len(ids) * max(row, LEAST_BYTES))
    return (lookup, (float(len(ids)), float(unique), float(of_update))), times


def _kernel(rows: int, columns: int, device: torch.device) -> TableKernel:
    on_cpu = device.type == "cpu"
    location = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
    return TableKernel(
        [(rows, columns, location, ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA)] * TABLES,
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=0.01,
        device=device,
    )


COLUMNS = 32


def replicated_speed(table_bytes: int, device: torch.device, repeats: int) -> dict[str, float]:
    """Returns the nanoseconds of a byte of a replicated table, by its name in `Speeds`.

    Args:
        table_bytes: Bytes of the table.
        device: Where to measure.
        repeats: Updates of the table.
    """
    table = nn.Parameter(torch.zeros(max(1, table_bytes // (4 * COLUMNS)), COLUMNS, device=device))
    optimizer = RowWiseAdagrad([table])

    def update() -> None:
        table.grad = torch.zeros_like(table)
        optimizer.step()

    return {"replicated_byte": nanoseconds(update, device, repeats) / table.nbytes}
