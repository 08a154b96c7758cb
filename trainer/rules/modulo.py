"""`ids = "modulo"`: wraps an id around the rows of the table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from trainer.rules.base import IdRule
from trainer.rules.error import greatest

if TYPE_CHECKING:
    from torch import Tensor


class Modulo(IdRule):
    """Wraps ids."""

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns `ids % rows`."""
        highest, negative = greatest(ids)
        if not negative and highest < self.rows:
            return ids
        if not negative and highest < 2**32:  # as in Criteo; half as wide, three times as fast
            return modulo(ids.astype(np.uint32, copy=False), np.uint32(self.rows)).view(np.int32)
        wide = ids if ids.dtype == np.uint64 else ids.astype(np.int64)
        return modulo(wide, wide.dtype.type(self.rows))

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns `ids % rows`."""
        return unsigned_modulo(ids, self.rows) if unsigned else ids.remainder(self.rows)


def modulo(ids: np.ndarray, rows: np.integer) -> np.ndarray:
    """Returns `ids % rows`, five times as fast: NumPy's `//` by a scalar multiplies and shifts, its `%` divides."""
    whole = ids // rows
    whole *= rows
    return np.subtract(ids, whole, out=whole)


def unsigned_modulo(bits: "Tensor", rows: int) -> "Tensor":
    """Returns unsigned 64-bit numbers modulo `rows`, below 2^31, in torch, which has only signed numbers."""
    return (((bits >> 1) & (2**63 - 1)) % rows * 2 + (bits & 1)) % rows
