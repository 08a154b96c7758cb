"""Counts the different ids of all rows, in bounded memory, by the least of their hashes (Bar-Yossef et al. 2002)."""

import math
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.hashes import bits_of, different
from torchx_recsys.apps.check_data.splits import Kind, computed
from trainer.core.arrays import mix

KEPT = 2048
ERROR = 1 / math.sqrt(KEPT - 2)
"""The standard error of a number of ids, as a share of it; a number below `KEPT` is exact."""
CHUNK = 16_384  # values that are hashed in the cache of a core
OF: dict[Kind, Kind] = {"integer": "integer", "integers": "integer", "text": "text", "texts": "text"}
"""The kinds of columns with ids, each with the kind of its ids."""


@dataclass(frozen=True)
class Distinct:
    """The different ids of a column, in any part of its rows.

    Attributes:
        hashes: The least hashes, ascending, at most `KEPT`. The same whatever the parts were and their order.
    """

    hashes: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))

    @property
    def is_exact(self) -> bool:
        """Whether every id is among the hashes."""
        return len(self.hashes) < KEPT

    @property
    def number(self) -> int:
        """How many there are."""
        return len(self.hashes) if self.is_exact else round((KEPT - 1) * 2**64 / int(self.hashes[-1]))

    @property
    def limit(self) -> np.uint64 | None:
        """No hash above it can be among the least hashes any more; None if any can."""
        return None if self.is_exact else self.hashes[-1]

    def join(self, other: "Distinct") -> "Distinct":
        """Returns the ids of both."""
        return Distinct(different(np.concatenate([self.hashes, other.hashes]))[:KEPT])


def distinct_of(column: pa.Array, kind: Kind, limit: np.uint64 | None) -> Distinct:
    """Returns the different ids of plain values, limited to hashes up to a limit.

    Args:
        column: Single ids or lists.
        kind: Their kind, one of `OF`.
        limit: The limit of ids that include these, if it is known.
    """
    ids = computed(column.flatten() if kind != OF[kind] else column, OF[kind]).drop_null()
    if limit is None:  # then all are sorted, and often they are few
        ids = ids.unique()
    bits = bits_of(ids, OF[kind])
    hashes = [mix(bits[start : start + CHUNK]) for start in range(0, len(bits), CHUNK)]
    least = [part if limit is None else part[np.flatnonzero(part <= limit)] for part in hashes]
    return Distinct(different(np.concatenate([*least, Distinct().hashes]))[:KEPT])
