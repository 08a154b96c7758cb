"""Array helpers: places within groups, and splitmix64, a 64-bit hash (Steele, Lea, Flood: OOPSLA 2014).

The hash exists twice, for NumPy and for torch, which has only signed numbers.
"""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def places_in_groups(sizes: np.ndarray) -> np.ndarray:
    """Returns 0, 1, 2, ... for each group, `[sum of sizes]` int64, given the sizes of the groups, `[N]`."""
    return np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)


def mix(ids: np.ndarray) -> np.ndarray:
    """Hashes integers, `[N]`, to all 64 bits, `[N]` uint64."""
    x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def splitmix64(x: "Tensor") -> "Tensor":
    """Returns the same bits as `mix`, for int64 numbers in torch."""
    x = x - 7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number, like the factors below
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: "Tensor", bits: int) -> "Tensor":
    """Shifts right and fills with zeros; torch's own shift would repeat the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
