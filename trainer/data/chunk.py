"""Consecutive rows of a row group, before decoding."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa

from trainer.core.errors import InputError
from trainer.data.readers.base import Column
from trainer.data.selection import row_in_file
from trainer.rules.plain_types import plain_array, to_ids, to_numbers


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a row group.

    Attributes:
        column: Returns a column of the row group.
        rows: The rows of the row group.
        where: Returns the name of a row in messages, given its number, or of the row group, given None. Unset: no file.
    """

    column: Column
    rows: range
    where: Callable[[int | None], str] | None = None

    def array(self, name: str) -> pa.Array:
        """Returns a column of these rows, without its layout (`to_plain`)."""
        return plain_array(self.column(name).slice(self.rows.start, len(self.rows)))

    def numbers(self, name: str) -> pa.Array:
        """Returns a column of these rows as numbers."""
        return to_numbers(self.array(name))

    def ids(self, name: str) -> pa.Array:
        """Returns a column of these rows as integers, strings or lists of either."""
        try:
            return to_ids(self.array(name))
        except pa.ArrowInvalid as error:
            self.refuse(f"column '{name}': an id has more than 64 bits ({error}); ids are 64-bit integers or strings")

    def refuse(self, message: str, row: int | None = None) -> NoReturn:
        """Raises InputError for a value; counts its row, if known, from the beginning of the chunk."""
        number = None if row is None else row_in_file(self.column, self.rows.start + row)
        if self.where:
            raise InputError(f"{self.where(number)}, {message}")
        raise InputError(message if number is None else f"row {number}, {message}")

    def check(self, column: str, values: np.ndarray, good: np.ndarray, why: str) -> np.ndarray:
        """Returns the values of a column, `[R]`, or raises an error that names the first bad value."""
        if not good.all():
            row = int(good.argmin())
            self.refuse(f"column '{column}': {values[row]} {why}", row)
        return values
