"""Figures of numbers: quantiles, skew, shift between samples, and how well they alone predict a label."""

from collections.abc import Callable

import numpy as np

BUCKETS = 10
FLOOR = 1e-4  # the part of samples that an empty bucket is taken to have: the logarithm of none is infinite


def auc(scores: np.ndarray, negatives: np.ndarray, positives: np.ndarray) -> float:
    """Returns the area under the ROC curve, of equal scores the mean of all their orders; NaN for labels of one class.

    Args:
        scores: Any finite or infinite numbers, ascending, `[N]`.
        negatives: How many samples of the negative class have each, `[N]`.
        positives: How many of the positive class, `[N]`.
    """
    if not (negatives.any() and positives.any()):
        return float("nan")
    first = np.flatnonzero(np.append(True, scores[1:] != scores[:-1]))
    negatives, positives = (np.add.reduceat(one, first, dtype=np.int64) for one in (negatives, positives))
    below = np.cumsum(negatives) - negatives / 2
    return float(positives @ below / (positives.sum() * negatives.sum()))


def auc_alone(values: np.ndarray, labels: np.ndarray) -> float:
    """Returns the AUC of a column alone, in the better direction, with missing values (NaN) at the better end.

    Args:
        values: The values, ascending, the missing ones last, `[R]`.
        labels: Whether each is of the positive class, `[R]`.
    """
    missing = np.isnan(values)
    found = [auc(np.where(missing, np.inf, values), ~labels, labels)]
    if number := int(missing.sum()):
        labels = np.roll(labels, number)
        found.append(auc(np.roll(np.where(missing, -np.inf, values), number), ~labels, labels))
    return max(max(one, 1 - one) for one in found)


def edges_of(values: np.ndarray) -> np.ndarray:
    """Returns where buckets with equal numbers of values end, without the first and the last, of finite values."""
    return np.unique(np.quantile(values, np.linspace(0, 1, BUCKETS + 1)[1:-1])) if len(values) else np.zeros(0)


def bucket_shares(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Returns the part of values in each bucket, and of missing ones (NaN) last."""
    missing = np.isnan(values)
    places = np.searchsorted(edges, values[~missing], side="right")
    counts = np.bincount(places, minlength=len(edges) + 1)
    return np.append(counts, missing.sum()) / max(1, len(values))


def psi(expected: np.ndarray, found: np.ndarray) -> float:
    """Returns the population stability index of two distributions over the same buckets."""
    expected, found = np.maximum(expected, FLOOR), np.maximum(found, FLOOR)
    return float(((found - expected) * np.log(found / expected)).sum())


def skewness(values: np.ndarray) -> float:
    """Returns the third standardized moment; 0 for constants."""
    spread = values.std() if len(values) else 0.0
    if spread == 0:
        return 0.0
    standard = (values - values.mean()) / spread
    return float((standard * standard * standard).mean())  # a tenth of the time of **


def middle_std(values: np.ndarray) -> float:
    """Returns the standard deviation of ascending values but for the lowest and the highest hundredth."""
    low, high = np.quantile(values, [0.01, 0.99])
    return float(values[np.searchsorted(values, low) : np.searchsorted(values, high, side="right")].std())


TRANSFORMS: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]]] = {
    "log1p": (-1.0, np.log1p),
    "log3": (-3.0, lambda x: np.log(x + 3)),
}
"""Transforms that are suggested: what values must be above, and the function."""
SKEWED = 3.0


def best_transform(values: np.ndarray) -> str:
    """Returns the transform to suggest for finite values: of skewed ones a logarithm that all of them have."""
    if len(values) and skewness(values) > SKEWED:
        for name, (above, _) in TRANSFORMS.items():
            # Half of the way to where the logarithm ends is left to values that nobody has seen yet.
            if values.min() >= above / 2:
                return name
    return "none"


def transformed(values: np.ndarray, name: str) -> np.ndarray:
    """Returns values after a suggested transform."""
    return values if name == "none" else TRANSFORMS[name][1](values)
