"""Rules for ids of a user's own, in a file that needs NumPy alone."""

import numpy as np


class Blocks:
    """Puts ids that are near to one another into one row; refuses ids below `lowest`."""

    takes_strings = True

    def __init__(self, rows: int, width: int = 10, lowest: int = -(2**63)) -> None:
        self._rows, self._width, self._lowest = rows, width, lowest

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        if len(ids) and ids.min() < self._lowest:
            raise ValueError(f"id {ids.min()} is below {self._lowest}")
        return np.floor_divide(ids, self._width) % self._rows


class BlocksInTorch(Blocks):
    """The same, as a part of an exported model, too."""

    def torch_rows_of(self, ids):
        return ids // self._width % self._rows


class Astray:
    """Gives rows that the table does not have."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        return np.full(len(ids), self._rows)
