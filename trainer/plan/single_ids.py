"""Sends single ids to the ranks of their tables, in one exchange.

TorchRec exchanges how many ids come, then how many each sample has, and the ids. With at most one id for each sample, a
block of a size that all ranks know says all of it.
"""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torchrec.distributed.types import Awaitable
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.batches.batch import of_block


class SingleIdsExchange:
    """Sends the ids of features to the ranks of their tables.

    Args:
        group: The ranks.
        keys: The features, in the order of the ranks that have their tables.
        numbers: The number of features of each rank.
    """

    def __init__(self, group: dist.ProcessGroup, keys: Sequence[str], numbers: Sequence[int]) -> None:
        self._group, self._numbers = group, [*numbers]
        end = sum(numbers[: group.rank() + 1])
        self._keys = keys[end - numbers[group.rank()] : end]

    def __call__(self, ids: Tensor) -> "ArrivingIds":
        """Begins to send this rank's ids of the features, `[F, B]`, NO_ID without one."""
        ranks, here = len(self._numbers), len(self._keys)
        arriving = ids.new_empty(ranks, here, ids.shape[1])
        come = ranks * [here]
        work = dist.all_to_all_single(arriving.flatten(0, 1), ids, come, self._numbers, self._group, async_op=True)
        assert work
        return ArrivingIds(work, arriving, self._keys)


class ArrivingIds(Awaitable[KeyedJaggedTensor]):
    """The ids of this rank's features, from all ranks.

    Args:
        work: The exchange.
        arriving: The ids, `[ranks, F, B]`.
        keys: The features, `F` of them.
    """

    def __init__(self, work: dist.Work, arriving: Tensor, keys: Sequence[str]) -> None:
        super().__init__()
        self._work, self._arriving, self._keys = work, arriving, keys

    def _wait_impl(self) -> KeyedJaggedTensor:
        self._work.wait()
        ranks, features, samples = self._arriving.shape
        return of_block(self._arriving.transpose(0, 1).reshape(features, ranks * samples), self._keys)
