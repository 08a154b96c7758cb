"""Groups of unequal size, one after the other in an array."""

import numpy as np


def places_in_groups(sizes: np.ndarray) -> np.ndarray:
    """Returns 0, 1, 2, ... for each group, `[sum of sizes]` int64, given the sizes of the groups, `[N]`."""
    return np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)
