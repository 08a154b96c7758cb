"""Metrics of ordered predictions in NumPy float64, from sums over equal logits."""

import math

import numpy as np

THRESHOLDS = ("0.5", "0.3", "0.00000001")
NAMES = ["auc", "auprc", *(f"{name}@{t}" for name in ("accuracy", "precision", "recall") for t in THRESHOLDS)]


def ordered_metrics(logits, labels, weights):
    """Returns the metrics of NAMES, NaN where there is nothing to divide by."""
    logits, labels, weights = (np.asarray(values, np.float64) for values in (logits, labels, weights))
    values, places = np.unique(logits[weights > 0], return_inverse=True)
    masses = [(weights * share)[weights > 0] for share in (1 - labels, labels)]
    negative, positive = (np.bincount(places, weights=mass, minlength=len(values)) for mass in masses)
    negatives, positives = negative.sum(), positive.sum()
    upwards = [np.cumsum(side[::-1])[::-1] for side in (negative, positive)]
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {
            "auc": (positive * (np.cumsum(negative) - negative / 2)).sum() / (positives * negatives),
            "auprc": (positive * np.nan_to_num(upwards[1] / (upwards[0] + upwards[1]))).sum() / positives,
        }
        for threshold in THRESHOLDS:
            high = values >= math.log(float(threshold)) - math.log1p(-float(threshold))
            right = negative[~high].sum() + positive[high].sum()
            found[f"accuracy@{threshold}"] = right / (negatives + positives)
            found[f"precision@{threshold}"] = positive[high].sum() / (positive + negative)[high].sum()
            found[f"recall@{threshold}"] = positive[high].sum() / positives
    return {name: float(found[name]) for name in NAMES}
