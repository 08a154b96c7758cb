"""Histograms of weights and embeddings over all ranks, without gathering a table.

TensorBoard's own `add_histogram` takes whole tensors, in NumPy: three times as slow, and of one rank only.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.utils.tensorboard import SummaryWriter

from trainer.checkpoint.state_dict import is_table, table_of
from trainer.core.distributed import DistributedContext, local_shards_of
from trainer.core.errors import InputError
from trainer.run.step_clock import named_range
from trainer.training.watchers import RunView, Watcher

BINS = 64
CHUNK = 2**20  # number of values that are converted together


@dataclass(frozen=True)
class Histogram:
    """The histogram of one weight.

    Attributes:
        name: `weights/NAME`, or `tables/TABLE`.
        counts: Values in each bin, `[BINS]` float64.
        edges: Edges of the bins, `[BINS + 1]` float64.
        sum: Sum of the values.
        sum_of_squares: Sum of their squares.
    """

    name: str
    counts: Tensor
    edges: Tensor
    sum: float
    sum_of_squares: float


class Histograms(Watcher):
    """Draws histograms of the weights at an interval of steps; the same on any number of ranks, under any plan."""

    def after_step(self, run: RunView, step: int) -> None:
        """Draws the histograms, if they are due."""
        if step % run.config.report.histograms_every_steps == 0:
            with named_range("report"):
                found = histograms_of(_chosen(run), run.context)
                run.draw(lambda board: _add(board, found, step))
            run.resume_clock()


def _chosen(run: RunView) -> dict[str, Tensor]:
    """Returns the weights whose name, or whose table, matches a pattern of `report.histograms_of`."""
    patterns = run.config.report.histograms_of
    weights = {name: value for name, value in run.weights().items() if _matches(_label(name), patterns)}
    if not weights:
        raise InputError(f"report.histograms_of is {patterns}, which matches no table and no weight of this model")
    return weights


def _matches(label: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(label.partition("/")[2], pattern) for pattern in patterns)


@torch.no_grad()
def histograms_of(weights: Mapping[str, Tensor], context: DistributedContext) -> list[Histogram]:
    """Returns the histogram of every weight whose values are all finite; every rank has to call it.

    Args:
        weights: The weights by their names in checkpoints, the same names on all ranks.
        context: This process among the ranks.
    """
    local = {name: list(_chunks(value, context)) for name, value in weights.items()}
    # One all-reduce for all bounds and one for all counts: of [-low, high], and of [counts, sum, sum of squares].
    bounds = torch.stack([_bounds(chunks, context.device) for chunks in local.values()])
    dist.all_reduce(bounds, dist.ReduceOp.MAX)
    limits = [_widened(-negated, high) for negated, high in bounds.tolist()]
    chunks_and_limits = zip(local.values(), limits, strict=True)
    counts = torch.stack([_count(chunks, between, context.device) for chunks, between in chunks_and_limits])
    dist.all_reduce(counts)
    return [
        Histogram(_label(name), row[:BINS], _edges(between), row[BINS].item(), row[BINS + 1].item())
        for name, row, between in zip(local, counts.cpu(), limits, strict=True)
        if between
    ]


def _add(board: SummaryWriter, histograms: list[Histogram], step: int) -> None:
    for one in histograms:
        board.add_histogram_raw(
            one.name,
            one.edges[0].item(),
            one.edges[-1].item(),
            one.counts.sum().item(),
            one.sum,
            one.sum_of_squares,
            one.edges[1:].tolist(),
            one.counts.tolist(),
            step,
        )


def _chunks(value: Tensor, context: DistributedContext) -> Iterator[Tensor]:
    """Yields the values that this rank counts; rank 0 alone counts a weight that every rank has."""
    if isinstance(value, ShardedTensor) or context.is_rank0:
        for shard in local_shards_of(value):
            yield from shard.detach().reshape(-1).split(CHUNK)


def _bounds(chunks: list[Tensor], device: torch.device) -> Tensor:
    """Returns the negated least and the greatest value, `[2]`; infinity if any value is not finite."""
    found = torch.full((2,), -torch.inf, dtype=torch.float64, device=device)
    for chunk in chunks:
        if chunk.numel():
            least, greatest = chunk.aminmax()
            found = torch.maximum(found, torch.stack([-least, greatest]).double())
    return found.nan_to_num(nan=torch.inf, neginf=-torch.inf, posinf=torch.inf)


def _count(chunks: list[Tensor], between: tuple[float, float] | None, device: torch.device) -> Tensor:
    """Returns the counts of all bins, the sum and the sum of squares, `[BINS + 2]`; zeros without bounds."""
    found = torch.zeros(BINS + 2, dtype=torch.float64, device=device)
    if between is None:
        return found
    for chunk in chunks:
        found[:BINS] += chunk.float().histc(BINS, *between)
        values = chunk.double()  # of a chunk that stays in a cache, this is ten times as fast as sum(dtype=float64)
        found[BINS] += values.sum()
        found[BINS + 1] += values.square().sum()
    return found


def _edges(between: tuple[float, float]) -> Tensor:
    return torch.linspace(*between, BINS + 1, dtype=torch.float64)


def _widened(low: float, high: float) -> tuple[float, float] | None:
    """Returns bounds that leave equal values a bin; None for values that are not finite."""
    if math.isinf(low) or math.isinf(high):
        return None
    margin = 0.0 if high > low else 1e-3 * max(1.0, abs(low))
    return low - margin, high + margin


def _label(name: str) -> str:
    return f"tables/{table_of(name)}" if is_table(name) else f"weights/{name.removeprefix('model.')}"
