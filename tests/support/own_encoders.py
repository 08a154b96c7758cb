"""A user's own encoders of values, for tests that name them on the command line."""

import numpy as np

CALLS: list[list] = []


def sizes(values):
    """Vectors of the length of a value and of its square."""
    CALLS.append(values)
    return np.array([[len(value), len(value) ** 2] for value in values], np.float32)


def fails_at_stop(values):
    """The same, until a text is `stop`."""
    if "stop" in values:
        raise RuntimeError("told to stop")
    return sizes(values)


def one_number(values):
    """A number for each value, not a vector."""
    return np.ones(len(values))


def too_large(values):
    """Numbers beyond half precision."""
    return np.full((len(values), 2), 1e6)


def changing(values):
    """Vectors that are as long as there are values."""
    return np.ones((len(values), len(values)))


NO_FUNCTION = 5
