"""Metrics by name, and the direction in which each is better.

Free of torch, as checkpoints are listed without it: classes are imported when they are used.
"""

import re

from trainer.core.errors import InputError
from trainer.core.registry import find_by_name

METRICS = {
    "auc": "trainer.metrics.binary:Auc",
    "normalized_entropy": "trainer.metrics.binary:NormalizedEntropy",
    "log_loss": "trainer.metrics.binary:LogLoss",
    "calibration": "trainer.metrics.binary:Calibration",
    "label_rate": "trainer.metrics.binary:LabelRate",
}
# The same as the classes' own attribute, which cannot be read without torch.
HIGHER_IS_BETTER: dict[str, bool | None] = {
    "auc": True,
    "normalized_entropy": False,
    "log_loss": False,
    "calibration": None,  # the best is 1
    "label_rate": None,
}


def higher_is_better(metric: str) -> bool | None:
    """Returns whether a higher value of a metric is better, False if a lower one is, None if neither.

    Args:
        metric: A name, followed by `/LABEL` where there are several labels.

    Raises:
        InputError: There is no such metric.
    """
    name = metric.partition("/")[0]
    if name in HIGHER_IS_BETTER:
        return HIGHER_IS_BETTER[name]
    return find_by_name("checkpoint.keep.best", name, METRICS).higher_is_better


def result_name(metric: str) -> str:
    """Returns what results call a metric: its name, or the snake-case name of the user's own class.

    Args:
        metric: As for `higher_is_better`.
    """
    name, slash, label = metric.rpartition(":")[2].partition("/")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() + slash + label


def check_metrics(names: list[str], watched: dict[str, str | None], labels: list[str]) -> None:
    """Refuses what the first evaluation, or the first choice of a best one, could not find.

    Args:
        names: Those of evaluate.metrics.
        watched: Those that choose the best evaluation, by the keys that name them.
        labels: Names of the labels.

    Raises:
        InputError: There is no such metric, or a watched one is none that evaluations compute and that has a direction.
    """
    for name in names:
        find_by_name("evaluate.metrics", name, METRICS)
    suffixes = [f"/{label}" for label in labels] if len(labels) > 1 else [""]
    allowed = [f"{name}{suffix}" for name in names if higher_is_better(name) is not None for suffix in suffixes]
    for key, metric in watched.items():
        if metric and metric not in allowed:
            known = ", ".join(allowed) or "none of evaluate.metrics, which lacks auc"
            raise InputError(f"{key} is '{metric}'; allowed: {known}")
