"""Counts distinct ids in bounded memory by keeping the smallest hashes (Bar-Yossef et al. 2002)."""

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
CHUNK = 16_384  # values hashed at once, so that they stay in the cache of a core
OF: dict[Kind, Kind] = {"integer": "integer", "integers": "integer", "text": "text", "texts": "text"}
"""The kinds of columns with ids, each with the kind of its ids."""


@dataclass(frozen=True)
class Distinct:
    """The distinct ids of a column, in any part of its rows.

    Attributes:
        hashes: The smallest hashes, ascending, at most `KEPT`; the same for any division of the rows.
    """

    hashes: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))

    @property
    def is_exact(self) -> bool:
        """Whether every id is among the hashes."""
        return len(self.hashes) < KEPT

    @property
    def number(self) -> int:
        """The number of distinct ids, or its estimate."""
        return len(self.hashes) if self.is_exact else round((KEPT - 1) * 2**64 / int(self.hashes[-1]))

    @property
    def limit(self) -> np.uint64 | None:
        """No hash above it can be among the smallest hashes any more; None if any can."""
        return None if self.is_exact else self.hashes[-1]

    def join(self, other: "Distinct") -> "Distinct":
        """Returns the union of both."""
        return Distinct(different(np.concatenate([self.hashes, other.hashes]))[:KEPT])


def distinct_of(column: pa.Array, kind: Kind, limit: np.uint64 | None) -> Distinct:
    """Returns the distinct ids of plain values, without hashes above a limit.

    Args:
        column: Single ids or lists.
        kind: Their kind, one of `OF`.
        limit: The limit of a set that will include these ids, if it is known.
    """
    ids = computed(column.flatten() if kind != OF[kind] else column, OF[kind]).drop_null()
    if limit is None:  # then all hashes are sorted; often there are few
        ids = ids.unique()
    bits = bits_of(ids, OF[kind])
    hashes = [mix(bits[start : start + CHUNK]) for start in range(0, len(bits), CHUNK)]
    least = [part if limit is None else part[np.flatnonzero(part <= limit)] for part in hashes]
    return Distinct(different(np.concatenate([*least, Distinct().hashes]))[:KEPT])
