"""`offset`: adds a number to each id."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from trainer.core.errors import InputError
from trainer.rules.base import SparseKeys
from trainer.rules.nulls import is_missing, zero_filled
from trainer.rules.plain_types import id_type, is_string


class OffsetKeys(SparseKeys):
    """The key of this rule."""

    offset: int = pydantic.Field(0, gt=-(2**31), lt=2**31)
    """Added to each id, such as -1 to ids that begin at 1."""


def check_integers(file: str, column: str, dtype: pa.DataType, key: str, feature: OffsetKeys) -> None:
    """Refuses a column of strings, which have no sum."""
    if feature.offset and is_string(id_type(dtype)):
        raise InputError(
            f"{file}: column '{column}' is of type {dtype}, but {key}.offset is {feature.offset}, which is added to "
            "integers only; leave it out"
        )


def shifted(ids: pa.Array, offset: int) -> pa.Array:
    """Returns ids, integers of any width, plus an offset; nulls stay. In torch this is `ids + offset`."""
    if not offset:
        return ids
    wide = zero_filled(pc.cast(ids, pa.uint64() if pa.types.is_uint64(ids.type) else pa.int64(), safe=False))
    return pa.array(wide + np.int64(offset).astype(wide.dtype), mask=is_missing(ids))
