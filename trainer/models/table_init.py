"""Initial values of tables: a function of seed, table, row and column, independent of the plan."""

import zlib

import torch
from torch import Tensor, nn
from torch.distributed._shard.sharded_tensor import ShardedTensor

from trainer.core.splitmix import splitmix64
from trainer.models.embeddings import table_of_weight

STEP_FACTOR = 0x9E3779B97F4A7C15  # odd, so that no two steps have the same product
# Values that are drawn at once. Their counters and bits take four times 8 bytes for each value: 2 MiB, less than a
# processor's cache, where blocks of a fixed number of rows took more than the tables of a wide model.
BLOCK_VALUES = 1 << 16


def initialize_tables(model: nn.Module, seed: int) -> None:
    """Sets every weight of every table as a function of `(seed, table, row, column)`, whatever the plan.

    Weights are uniform in plus or minus `1 / sqrt(rows)`, the range that TorchRec uses.
    """
    # A torch generator yields a sequence: a rank would have to draw whole tables to find the values of its shards, and
    # CPU and GPU draw different ones. TorchRec draws each shard by itself, so that weights depend on the plan.
    for name, value in model.state_dict().items():
        table = table_of_weight(name)
        if table and isinstance(value, ShardedTensor):
            for local_shard in value.local_shards():
                _fill(local_shard.tensor, value.size(), local_shard.metadata.shard_offsets, table, seed)
        elif table:
            _fill(value, value.size(), [0, 0], table, seed)


def _fill(local_shard: Tensor, whole: torch.Size, offsets: list[int], table: str, seed: int) -> None:
    columns = torch.arange(offsets[1], offsets[1] + local_shard.shape[1], device=local_shard.device)
    block_rows = max(1, BLOCK_VALUES // len(columns))
    for start in range(0, local_shard.shape[0], block_rows):
        block = local_shard[start : start + block_rows]
        rows = torch.arange(offsets[0] + start, offsets[0] + start + len(block), device=local_shard.device)
        block.copy_(initial_rows(rows, columns, whole, table, seed))


def initial_rows(rows: Tensor, columns: Tensor, whole: torch.Size, table: str, seed: int, step: int = 0) -> Tensor:
    """Returns initial values of rows `[N]` and columns `[C]` of a table of size `whole`; other steps give others."""
    key = zlib.crc32(table.encode()) << 32 ^ seed ^ (step * STEP_FACTOR) % 2**64
    unit = _uniform(rows[:, None] * whole[1] + columns, key)
    return (2 * unit - 1) * whole[0] ** -0.5


def _uniform(counter: Tensor, key: int) -> Tensor:
    """Returns numbers in [0, 1) for counters, by two rounds of splitmix64 (Steele et al., OOPSLA 2014)."""
    key = key - (1 << 64) if key >= 1 << 63 else key
    bits = splitmix64(splitmix64(counter) ^ key)
    return ((bits >> 40) & 0xFFFFFF).float() / (1 << 24)  # as many bits as a float32 holds exactly
