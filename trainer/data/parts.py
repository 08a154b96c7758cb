"""A data set in parts of equal size, which ranks take one after the other."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trainer.data.dataset import RowGroup
from trainer.data.order import Lanes, RowSlice, row_slices

Part = tuple[int, int]
"""Where a part begins and ends in the rows of a data set."""


def cut_into_parts(rows: int, size: int) -> list[Part]:
    """Returns the parts of a data set, of which the last one may be shorter."""
    return [(start, min(start + size, rows)) for start in range(0, rows, size)]


@dataclass(frozen=True, kw_only=True)
class PartLanes(Lanes):
    """Parts as lanes, one for each rank: its parts one after the other, in steps that never hold rows of two parts.

    Attributes:
        parts: The parts of each lane; but for the last one of a lane, whole steps.
    """

    parts: tuple[tuple[Part, ...], ...]

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


def lanes_of(parts: list[Part], world_size: int, batch_size: int) -> PartLanes:
    """Returns parts as lanes: of every round each rank takes the next one.

    Args:
        parts: The parts, all but the last of a multiple of `batch_size` rows.
        world_size: Number of ranks.
        batch_size: Rows of a rank in a step.
    """
    return PartLanes(
        rows=sum(stop - start for start, stop in parts),
        lanes=world_size,
        global_batch_size=batch_size * world_size,
        parts=tuple(tuple(parts[rank::world_size]) for rank in range(world_size)),
    )
