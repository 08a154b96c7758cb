"""`ids = "hash"`: mixes an id, then wraps it around the rows of the table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pydantic

from trainer.core.arrays import mix, splitmix64
from trainer.core.errors import InputError
from trainer.rules.base import IdRule, SparseKeys
from trainer.rules.modulo import modulo, unsigned_modulo

if TYPE_CHECKING:
    from torch import Tensor


class HashKeys(SparseKeys):
    """The keys of this rule."""

    salt: int = pydantic.Field(0, ge=0, lt=2**63)
    """For ids = "hash": each salt is another hash, which other ids collide in."""

    def check_salt(self, key: str) -> None:
        """Refuses a salt for other rules."""
        if self.salt and self.ids != "hash":
            raise InputError(
                f"{key}.salt is {self.salt}, but {key}.ids is '{self.ids}', which has no use for it; set ids to "
                "'hash' or leave salt out"
            )


class Hash(IdRule):
    """Hashes ids."""

    takes_strings = True

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of mixed ids."""
        return modulo(mix(salted(ids, self.feature.salt)), np.uint64(self.rows))

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the same."""
        salt = self.feature.salt and int(mix(np.array([self.feature.salt])).view(np.int64)[0])
        return unsigned_modulo(splitmix64(ids ^ salt if salt else ids), self.rows)


def salted(ids: np.ndarray, salt: int) -> np.ndarray:
    """Returns ids to hash, `[N]`, which differ by salt."""
    return ids.astype(np.uint64) ^ mix(np.array([salt])) if salt else ids
