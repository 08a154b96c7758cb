"""Vectors of a column's values, in the type that is written; of values that come again, encoded once."""

from typing import Any

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.embed_text.encoders import Encoder
from trainer.core.console import plural
from trainer.core.errors import InputError

KEPT = 100_000  # most vectors in memory


class Vectors:
    """The vectors of values.

    Args:
        encoder: The encoder.
        name: Its name, for messages.
        dtype: The type of the numbers.
        batch_size: Most values that the encoder gets at once.
        width: Length of the vectors, if it is known before the first.

    Attributes:
        width: Length of the vectors; None before the first.
        encoded: Number of values that the encoder got.
    """

    def __init__(self, encoder: Encoder, name: str, dtype: pa.DataType, batch_size: int, width: int | None) -> None:
        self._encoder, self._what, self._batch_size = encoder, f"--encoder is '{name}'", batch_size
        self._dtype: np.dtype = np.dtype(dtype.to_pandas_dtype())
        self._known: dict[Any, np.ndarray] = {}
        self.width, self.encoded = width, 0

    def __call__(self, values: pa.Array) -> pa.FixedSizeListArray:
        """Returns the vector of each value, `[R]`; null for a null.

        Raises:
            InputError: The encoder does not make such vectors.
        """
        coded = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
        different = coded.dictionary.to_pylist()
        if len(self._known) + len(different) > KEPT:
            self._known.clear()
        unknown = [value for value in different if value not in self._known]
        for start in range(0, len(unknown), self._batch_size):
            some = unknown[start : start + self._batch_size]
            self._known.update(zip(some, self._encode(some), strict=True))
        if self.width is None:
            raise InputError(f"{self._what}, and a whole row group has no value, before any vector shows their length")
        found = np.zeros((len(different) + 1, self.width), self._dtype)  # the last is that of a null
        for place, value in enumerate(different):
            found[place] = self._known[value]
        places = coded.indices.fill_null(len(different)).to_numpy(zero_copy_only=False)
        mask = coded.is_null() if coded.null_count else None
        return pa.FixedSizeListArray.from_arrays(pa.array(found[places].reshape(-1)), self.width, mask=mask)

    def _encode(self, values: list[Any]) -> np.ndarray:
        """Returns the vectors of values, `[N, width]`."""
        made = np.asarray(self._encoder(values))
        if made.ndim != 2 or len(made) != len(values) or not made.shape[1] or made.dtype.kind not in "fiu":
            raise InputError(
                f"{self._what}, which made an array {[*made.shape]} of {made.dtype} of {plural(len(values), 'value')}; "
                "it must return numbers, [values, width]"
            )
        if self.width not in (None, made.shape[1]):
            raise InputError(
                f"{self._what}, which made vectors of {self.width} and of {made.shape[1]} numbers; they need one length"
            )
        with np.errstate(over="ignore"):
            vectors = made.astype(self._dtype)
        if not (good := np.isfinite(vectors).all(axis=1)).all():
            row = int(good.argmin())
            number = made[row][~np.isfinite(vectors[row])][0]
            raise InputError(
                f"{self._what}, which made {number} of {values[row]!r:.40}; {self._dtype} has no such number"
            )
        self.width, self.encoded = made.shape[1], self.encoded + len(values)
        return vectors
