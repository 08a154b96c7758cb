"""`max_ids` and `keep`: the number of ids to keep of a list, and which."""

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pydantic

from trainer.core.errors import InputError
from trainer.rules.base import SparseKeys
from trainer.rules.plain_types import is_list, plain_type


class MaxIdsKeys(SparseKeys):
    """The keys of this rule."""

    max_ids: pydantic.PositiveInt | None = None
    """Ids of a list at most. A sequence, of pooling none or raw, needs it. Unset: all are kept."""
    keep: Literal["last", "first"] = "last"
    """Which max_ids of a longer list are kept: the last ones, the newest as a rule, or the first."""

    def check_max_ids(self, key: str, made: str | None) -> None:
        """Refuses a sequence without a length, and a length without lists; `made` is the key that makes ids."""
        if self.pooling in ("none", "raw") and self.max_ids is None:
            raise InputError(
                f"{key}.pooling is '{self.pooling}', but {key}.max_ids is unset; set the length that a sequence has at "
                "most, 1 for a single id"
            )
        if made and self.max_ids and self.pooling not in ("none", "raw"):
            raise InputError(
                f"{key}.max_ids is {self.max_ids}, which cuts lists, but {key}.{made} makes one id; leave it out"
            )
        if self.keep == "first" and self.max_ids is None:
            raise InputError(f"{key}.keep is 'first', but {key}.max_ids is unset; set how many ids are kept")


def check_lists(file: str, column: str, dtype: pa.DataType, key: str, feature: MaxIdsKeys) -> None:
    """Refuses a column of single ids, which cannot be cut; a sequence of one id needs `max_ids = 1`."""
    has_single_ids = not (is_list(dtype) or pa.types.is_null(plain_type(dtype)))
    if has_single_ids and feature.max_ids and feature.pooling not in ("none", "raw"):
        raise InputError(
            f"{file}: column '{column}' is of type {dtype}, but {key}.max_ids is {feature.max_ids}, which cuts "
            "lists; leave it out"
        )


def kept_range(length: Any, max_ids: int, keep: str) -> tuple[Any, Any]:
    """Returns the bounds of the kept part of a list, for a length or an array of lengths in NumPy or torch."""
    surplus = (length - max_ids) * (length > max_ids)
    begin = surplus * (keep == "last")
    return begin, begin + length - surplus


def kept(offsets: np.ndarray, array: pa.Array, feature: MaxIdsKeys) -> tuple[np.ndarray, pa.Array]:
    """Returns lists of at most `feature.max_ids` elements: where each list begins, and the elements."""
    lengths, longest = np.diff(offsets), feature.max_ids
    if longest is None or not len(lengths) or lengths.max() <= longest:
        return offsets, array
    begin, end = kept_range(lengths, longest, feature.keep)
    places = np.arange(len(array)) - np.repeat(offsets[:-1], lengths)
    stay = (places >= np.repeat(begin, lengths)) & (places < np.repeat(end, lengths))
    return np.concatenate([[0], np.cumsum(end - begin)]), array.filter(pa.array(stay))
