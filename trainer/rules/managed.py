"""The rule `ids = "managed"`: an id gets a row when it is first seen, or seen often enough, and may lose it again."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import pydantic

from trainer.core.errors import InputError
from trainer.core.section import MayChange
from trainer.rules.base import IdRule, SparseKeys
from trainer.rules.vocabulary import look_up

if TYPE_CHECKING:
    from torch import Tensor


FREE = -1  # marks a row without an id; ids are at least 0
SHARED = 0  # number of the row that all ids without their own row share


class ManagedKeys(SparseKeys):
    """The keys of `ids = "managed"`."""

    evict: Annotated[Literal["least_used", "least_recent"] | None, MayChange] = None
    """For ids = "managed": the id whose row a new one gets when all are in use. Unset: that of the run so far,
    least_used for a new run."""
    admit_after: int | None = pydantic.Field(default=None, ge=2)
    """For ids = "managed": an id gets a row in the step of this occurrence, and shares the row for unseen ids before.
    Unset: of its first."""

    def check_managed(self, key: str) -> None:
        """Refuses a table with too few rows, and keys that other rules do not read."""
        if self.ids == "managed" and self.rows < 2:
            raise InputError(f"{key}.rows is {self.rows}; managed ids need one for unseen ids and one more")
        # Earlier versions wrote their default, least_recent, to config.toml for all rules.
        if self.ids != "managed" and self.evict == "least_used":
            raise InputError(
                f"{key}.evict is '{self.evict}', but {key}.ids is '{self.ids}', which "
                "evicts nothing; leave it out or set ids to 'managed'"
            )
        if self.ids != "managed" and self.admit_after:
            raise InputError(
                f"{key}.admit_after is {self.admit_after}, but {key}.ids is '{self.ids}', which counts no ids; leave "
                "it out or set ids to 'managed'"
            )


class Managed(IdRule):
    """Cuts ids to 63 bits, because negative numbers are no ids. Training assigns rows, once per global batch.

    Attributes:
        ids_of_rows: The id of each row in a checkpoint, `[R]`, for an export.
    """

    takes_strings = True
    lists_ids = True
    keeps_rows = True
    ids_of_rows: np.ndarray

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the ids, which get their rows later, in training."""
        return ids.astype(np.int64) & np.iinfo(np.int64).max

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the ids that have their own row, sorted, and their rows; both are as long as the table.

        So the exports of two days have the same shapes, and an export can be the changes since another.
        """
        rows = own_rows(self.ids_of_rows)
        order = self.ids_of_rows[rows].argsort(kind="stable")
        # Filled up with the last id, of which a search finds the first. If there are no ids, with an id that no client
        # can send.
        padding = max(1, len(self.ids_of_rows)) - len(rows)
        last_id, last_row = (self.ids_of_rows[rows][order[-1]], rows[order[-1]]) if len(rows) else (FREE, SHARED)
        return {
            "keys": np.append(self.ids_of_rows[rows][order], np.full(padding, last_id)),
            "rows": np.append(rows[order], np.full(padding, last_row)),
        }

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the rows of ids; ids without a row share one."""
        ids = ids & (2**63 - 1)
        return look_up(ids, arrays, ids.new_full(ids.shape, SHARED))


def own_rows(ids: np.ndarray) -> np.ndarray:
    """Returns the rows that belong to an id, given the id of each row, `[R]`."""
    rows = np.flatnonzero(ids != FREE)
    return rows[rows != SHARED]
