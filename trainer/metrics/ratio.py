"""Ratios, as which metrics are computed."""

import math


def ratio(part: float, whole: float) -> dict[str, float]:
    """Returns the value of a metric that is one sum over another; NaN if there is nothing to divide by."""
    return {"": part / whole if whole else math.nan}
