"""`buckets`: turns a number into an id, by the edges below the number."""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from trainer.core.errors import InputError
from trainer.rules.base import SparseKeys

if TYPE_CHECKING:
    from torch import Tensor

NO_BUCKET = "is in no bucket; write a null where a number is missing"


class BucketKeys(SparseKeys):
    """The key of this rule."""

    buckets: list[float] = []
    """Makes ids of numbers: 0 below the first of these edges, 1 from it on, and so on; rows is above their number."""

    def check_buckets(self, key: str) -> None:
        """Refuses edges that do not ascend."""
        if any(high <= low for low, high in pairwise(self.buckets)):
            raise InputError(f"{key}.buckets is {self.buckets}; its edges must ascend")


def bucketized(numbers: np.ndarray, edges: list[float]) -> np.ndarray:
    """Returns the buckets of numbers that are not NaN, `[R]` float32 to `[R]` int32."""
    return np.searchsorted(np.asarray(edges, np.float32), numbers, side="right").astype(np.int32)


def bucketized_in_torch(numbers: "Tensor", edges: "Tensor") -> "Tensor":
    """Returns the same, `[B]` int64."""
    return (numbers[:, None] >= edges).sum(1)
