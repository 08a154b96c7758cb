"""splitmix64, a hash of 64 bits."""

from torch import Tensor


def splitmix64(x: Tensor) -> Tensor:
    """Returns int64 numbers spread over all 64 bits (Steele, Lea, Flood: OOPSLA 2014); equal ones stay equal."""
    x = x - 7046029254386353131  # 0x9E3779B97F4A7C15 as a signed number, as are the factors below
    x = (x ^ _shift(x, 30)) * -4658895280553007687
    x = (x ^ _shift(x, 27)) * -7723592293110705685
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shifts right and fills with zeros; torch's shift repeats the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
