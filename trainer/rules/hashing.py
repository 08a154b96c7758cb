"""Rules that compute rows from ids: `offset` is added, strings are hashed, and `ids` refuses, wraps or hashes an id."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from trainer.core.arrays import mix, splitmix64
from trainer.core.errors import InputError
from trainer.rules.base import IdRule, RefusedId, SparseKeys
from trainer.rules.plain_types import WHOLE, id_type, is_missing, is_string, zero_filled

if TYPE_CHECKING:
    from torch import Tensor


class OffsetKeys(SparseKeys):
    """The key of a number that is added to ids."""

    offset: int = pydantic.Field(0, gt=-(2**31), lt=2**31)
    """Added to each id, such as -1 to ids that begin at 1."""


def check_integers(file: str, column: str, dtype: pa.DataType, key: str, feature: OffsetKeys) -> None:
    """Refuses a column of strings, to which no offset can be added."""
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


class HashKeys(SparseKeys):
    """The key of `ids = "hash"`."""

    salt: int = pydantic.Field(0, ge=0, lt=2**63)
    """For ids = "hash": each salt is another hash, which other ids collide in."""

    def check_salt(self, key: str) -> None:
        """Refuses a salt for rules that do not hash."""
        if self.salt and self.ids != "hash":
            raise InputError(
                f"{key}.salt is {self.salt}, but {key}.ids is '{self.ids}', which has no use for it; set ids to "
                "'hash' or leave salt out"
            )


class Error(IdRule):
    """`ids = "error"`: an id is a row, and an id outside the table ends the job."""

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


class Modulo(IdRule):
    """`ids = "modulo"`: wraps an id around the rows of the table."""

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns `ids % rows`."""
        highest, negative = greatest(ids)
        if not negative and highest < self.rows:
            return ids
        if not negative and highest < 2**32:  # as in Criteo; with half the width it is three times as fast
            return modulo(ids.astype(np.uint32, copy=False), np.uint32(self.rows)).view(np.int32)
        wide = ids if ids.dtype == np.uint64 else ids.astype(np.int64)
        return modulo(wide, wide.dtype.type(self.rows))

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns `ids % rows`."""
        return unsigned_modulo(ids, self.rows) if unsigned else ids.remainder(self.rows)


class Hash(IdRule):
    """`ids = "hash"`: mixes an id, then wraps it around the rows of the table."""

    takes_strings = True

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of mixed ids."""
        return modulo(mix(salted(ids, self.feature.salt)), np.uint64(self.rows))

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the same."""
        salt = self.feature.salt and int(mix(np.array([self.feature.salt])).view(np.int64)[0])
        return unsigned_modulo(splitmix64(ids ^ salt if salt else ids), self.rows)


UNSIGNED = {np.dtype(dtype).itemsize: np.dtype(dtype) for dtype in (np.uint8, np.uint16, np.uint32, np.uint64)}


def greatest(ids: np.ndarray) -> tuple[int, bool]:
    """Returns the greatest integer by its bits, and whether any integer is negative, which shows as a huge number."""
    bits = ids if ids.dtype.kind == "u" else ids.view(UNSIGNED[ids.itemsize])
    highest = int(np.maximum.reduce(bits, initial=0))  # one pass for both
    return highest, ids.dtype.kind == "i" and highest >> (8 * ids.itemsize - 1) > 0


def is_outside(ids: Any, low: int, high: int) -> Any:
    """Returns which ids are outside [low, high), for an array of NumPy or torch."""
    return (ids < low) | (ids >= high)


def modulo(ids: np.ndarray, rows: np.integer) -> np.ndarray:
    """Returns `ids % rows`, five times as fast as NumPy's `%`: its `//` by a scalar multiplies and shifts."""
    whole = ids // rows
    whole *= rows
    return np.subtract(ids, whole, out=whole)


def unsigned_modulo(bits: "Tensor", rows: int) -> "Tensor":
    """Returns unsigned 64-bit numbers modulo `rows`, below 2^31, in torch, which has only signed numbers."""
    return (((bits >> 1) & (2**63 - 1)) % rows * 2 + (bits & 1)) % rows


def salted(ids: np.ndarray, salt: int) -> np.ndarray:
    """Mixes the salt into ids before they are hashed, `[N]`."""
    return ids.astype(np.uint64) ^ mix(np.array([salt])) if salt else ids


def as_integers(ids: pa.Array) -> np.ndarray:
    """Returns integers unchanged and strings hashed, `[N]`; nulls as 0 or the empty string."""
    if ids.type.id not in WHOLE and is_string(ids.type):
        return hash_text(ids.fill_null("") if ids.null_count else ids)
    return zero_filled(ids)


def hash_text(array: pa.Array) -> np.ndarray:
    """Hashes each distinct string, `[N]` int64; bytes count as the UTF-8 of a string."""
    # BLAKE2b, because hash() differs between processes and Arrow's hash may differ between versions. A table that is
    # trained today has to be right for the data of next year.
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    texts = coded.dictionary.cast(pa.large_binary()).to_pylist()  # as bytes: text need not be valid UTF-8
    hashes = np.frombuffer(b"".join(map(hash_bytes, texts)), np.int64)
    return hashes[coded.indices.to_numpy(zero_copy_only=False)]


def hash_bytes(text: bytes) -> bytes:
    """Returns the hash of a string in UTF-8: 8 bytes, little-endian and signed."""
    return hashlib.blake2b(text, digest_size=8).digest()
