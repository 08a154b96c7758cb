"""Exchanges of numbers between ranks, on the CPU."""

import numpy as np
import torch
import torch.distributed as dist

from trainer.core.distributed import DistributedContext, background_group


class Exchange:
    """Sends each rank its part of an array; all ranks call the same methods in the same order.

    Args:
        context: This process among the ranks.

    Attributes:
        ranks: Number of ranks.
    """

    def __init__(self, context: DistributedContext) -> None:
        self.ranks = context.world_size
        self._group = background_group(context) if context.world_size > 1 else None

    def rows(self, sent: np.ndarray, to: np.ndarray | None = None, come: np.ndarray | None = None) -> np.ndarray:
        """Sends rows, and returns those that came from the ranks, in the order of the ranks.

        Args:
            sent: The rows in the order of the ranks that they are for, `[K, C]` int64.
            to: Rows for each rank, `[ranks]`. Unset: the same number for each.
            come: Rows that come from each rank, `[ranks]`. Unset: as many as are sent.
        """
        if self._group is None:
            return sent
        found = torch.empty((len(sent) if come is None else int(come.sum()), sent.shape[1]), dtype=torch.int64)
        sizes = [None if one is None else one.tolist() for one in (come, to)]
        dist.all_to_all_single(found, torch.from_numpy(np.ascontiguousarray(sent)), *sizes, group=self._group)
        return found.numpy()

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Returns the sum over all ranks of an array of int64."""
        if self._group is None:
            return values
        total = torch.from_numpy(values.copy())
        dist.all_reduce(total, group=self._group)
        return total.numpy()
