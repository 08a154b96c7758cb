"""Initial values of embedding tables: a function of seed, table, row and column, whatever the plan."""

import math
import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainer.config.model import TableInit
from trainer.core.arrays import splitmix64
from trainer.core.distributed import placed_shards
from trainer.models.embeddings import table_of_weight

InitOf = Callable[[str], TableInit]
"""Returns the distribution of a table's initial values."""

UNIFORM = TableInit()  # within 1 / sqrt(rows)
STEP_FACTOR = 0x9E3779B97F4A7C15  # odd, so that no two steps have the same product
# Values that are drawn at once. Their counters and bits take four times 8 bytes for each value: 2 MiB, less than a
# processor's cache, where blocks of a fixed number of rows took more than the tables of a wide model.
BLOCK_VALUES = 1 << 16
BELOW = 0.022750131948179209  # the probability of a normal number two standard deviations below the mean, or less

# Acklam's rational approximations of the inverse normal distribution, with a relative error below 1.2e-9, less than a
# float32 can hold: of the middle, and of the tails.
MIDDLE = (
    (-3.969683028665376e01, 2.209460984245205e02, -2.759285104469687e02),
    (1.383577518672690e02, -3.066479806614716e01, 2.506628277459239e00),
    (-5.447609879822406e01, 1.615858368580409e02, -1.556989798598866e02, 6.680131188771972e01, -1.328068155288572e01),
)
TAIL = (
    (-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e00),
    (-2.549732539343734e00, 4.374664141464968e00, 2.938163982698783e00),
    (7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e00, 3.754408661907416e00),
)
TAIL_BEGINS = 0.02425


def initialize_tables(model: nn.Module, seed: int, init_of: InitOf = lambda _: UNIFORM) -> None:
    """Sets every weight of every table as a function of `(seed, table, row, column)`, whatever the plan.

    Without a distribution, weights are uniform within `1 / sqrt(rows)`, the range that TorchRec uses.
    """
    # A torch generator yields a sequence: a rank would have to draw whole tables to find the values of its shards, and
    # CPU and GPU draw different ones. TorchRec draws each shard by itself, so that weights depend on the plan.
    for name, value in model.state_dict().items():
        if table := table_of_weight(name):
            for local_shard, offsets in placed_shards(value):
                _fill(local_shard, value.size(), offsets, table, seed, init_of(table))


def _fill(local_shard: Tensor, whole: torch.Size, offsets: list[int], table: str, seed: int, init: TableInit) -> None:
    columns = torch.arange(offsets[1], offsets[1] + local_shard.shape[1], device=local_shard.device)
    # Normal values are computed in float64, in twice the memory.
    block_values = BLOCK_VALUES // (1 if init.std is None else 2)
    block_rows = max(1, block_values // len(columns))
    for start in range(0, local_shard.shape[0], block_rows):
        block = local_shard[start : start + block_rows]
        rows = torch.arange(offsets[0] + start, offsets[0] + start + len(block), device=local_shard.device)
        block.copy_(initial_rows(rows, columns, whole, table, seed, init=init))


def initial_rows(
    rows: Tensor,
    columns: Tensor,
    whole: torch.Size,
    table: str,
    seed: int,
    step: int = 0,
    init: TableInit = UNIFORM,
) -> Tensor:
    """Returns initial values of rows `[N]` and columns `[C]` of a table of size `whole`; other steps give others."""
    key = zlib.crc32(table.encode()) << 32 ^ seed ^ (step * STEP_FACTOR) % 2**64
    bits = _bits(rows[:, None] * whole[1] + columns, key)
    if init.std is None:
        usual = whole[0] ** -0.5
        low, high = (-usual if init.low is None else init.low), (usual if init.high is None else init.high)
        unit = ((bits >> 40) & 0xFFFFFF).float() / (1 << 24)  # as many bits as a float32 holds exactly
        return (2 * unit - 1) * ((high - low) / 2) + (high + low) / 2
    chance = (((bits >> 12) & ((1 << 52) - 1)).double() + 0.5) / (1 << 52)
    if init.distribution == "truncated_normal":
        found = _normal(BELOW + chance * (1 - 2 * BELOW)).clamp(-2, 2)
    else:
        found = _normal(chance)
    return (found * init.std + init.mean).float()


def _bits(counter: Tensor, key: int) -> Tensor:
    """Returns 64 random bits for each counter, by two rounds of splitmix64 (Steele et al., OOPSLA 2014)."""
    key = key - (1 << 64) if key >= 1 << 63 else key
    return splitmix64(splitmix64(counter) ^ key)


def _normal(chance: Tensor) -> Tensor:
    """Returns the normal numbers below which other normal numbers are by a chance, in (0, 1), both float64.

    By sums, products, quotients and roots alone, which round equally everywhere. Logarithms of torch differ in their
    last bit between a vector register and the values left over at the end of a block, and so from plan to plan.
    """
    low = torch.minimum(chance, 1 - chance)
    first, then, below = MIDDLE
    half = low - 0.5
    square = half * half
    found = _polynomial((*first, *then), square) * half / _polynomial((*below, 1.0), square)
    in_tail = low < TAIL_BEGINS
    first, then, below = TAIL
    root = torch.sqrt(-2 * _log(low[in_tail]))
    found[in_tail] = _polynomial((*first, *then), root) / _polynomial((*below, 1.0), root)
    return torch.where(chance > 0.5, -found, found)


def _log(values: Tensor) -> Tensor:
    """Returns natural logarithms of positive float64 values, by the series of the inverse hyperbolic tangent."""
    fraction, exponent = torch.frexp(values)
    ratio = (fraction - math.sqrt(0.5)) / (fraction + math.sqrt(0.5))  # at most 0.18 from 0
    series = _polynomial([1 / odd for odd in range(19, 0, -2)], ratio * ratio)
    return (exponent.double() - 0.5) * math.log(2) + 2 * ratio * series


def _polynomial(coefficients: "list[float] | tuple[float, ...]", values: Tensor) -> Tensor:
    found = torch.full_like(values, coefficients[0])
    for coefficient in coefficients[1:]:
        found.mul_(values).add_(coefficient)
    return found
