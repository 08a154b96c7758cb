"""`ids = "error"`: an id is a row, and an id outside the table ends the job."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.rules.base import IdRule, RefusedId

if TYPE_CHECKING:
    from torch import Tensor


class Error(IdRule):
    """Refuses ids that are not rows."""

    keeps_rows = True

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns ids unchanged; raises RefusedId for an id outside [0, rows)."""
        highest, negative = greatest(ids)
        if not negative and highest < self.rows:
            return ids
        reason = (
            f"is outside [0, {self.rows}); raise data.sparse.{self.name}.rows or set data.sparse.{self.name}.ids to "
            "'modulo' or 'hash'"
        )
        raise RefusedId(int(is_outside(ids, 0, self.rows).argmax()), reason)

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns ids unchanged; the loader of an export refuses other ids."""
        return ids

    def described(self) -> dict[str, Any]:
        """Returns the range of raw ids."""
        offset = self.feature.offset
        return {"range": [-offset, self.rows - offset]}


def greatest(ids: np.ndarray) -> tuple[int, bool]:
    """Returns the greatest integer by its bits, and whether one is negative: its bits are a huge number."""
    highest = int(ids.view(f"u{ids.itemsize}").max(initial=0))  # one pass for both
    return highest, highest > np.iinfo(ids.dtype).max


def is_outside(ids: Any, low: int, high: int) -> Any:
    """Returns which ids are outside [low, high), for an array of NumPy or torch."""
    return (ids < low) | (ids >= high)
