"""Random numbers by counter (Philox: Salmon et al., SC 2011)."""

import numpy as np


def philox(seed: int, epoch: int, high: int, low: int, stream: int = 0) -> np.random.Philox:
    """Returns a generator whose state is a function of the arguments."""
    # Its state is a function of the arguments, so that nothing has to be saved: any window can be drawn at once.
    counter = np.array([0, stream, low, high], dtype=np.uint64)
    return np.random.Philox(counter=counter, key=np.array([seed, epoch], dtype=np.uint64))
