"""Metrics by name, and the direction in which each is better.

Free of torch, as checkpoints are listed without it: classes are imported when they are used.
"""

import re

from trainer.config.root import Config
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
        metric: A name, followed by `/TASK` where there are several tasks.

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
    name, slash, task = metric.rpartition(":")[2].partition("/")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() + slash + task


def metrics_of(task: str, config: Config) -> tuple[str, list[str]]:
    """Returns the key that names a task's metrics, and the metrics."""
    own = config.tasks[task].metrics if config.tasks else None
    return ("evaluate.metrics", config.evaluate.metrics) if own is None else (f"tasks.{task}.metrics", own)


def check_metrics(config: Config) -> None:
    """Refuses what the first evaluation, or the first choice of a best one, could not find.

    Raises:
        InputError: There is no such metric, or one that chooses the best evaluation is none that evaluations compute
            and that has a direction.
    """
    tasks, allowed = config.named_tasks(), []
    for task in tasks:
        key, names = metrics_of(task, config)
        for name in names:
            find_by_name(key, name, METRICS)
        suffix = f"/{task}" if len(tasks) > 1 else ""
        allowed += [f"{name}{suffix}" for name in names if higher_is_better(name) is not None]
    watched = {
        "checkpoint.keep.best": config.checkpoint.keep.best,
        "train.stop_early.metric": config.train.stop_early.metric,
    }
    for key, metric in watched.items():
        if metric and metric not in allowed:
            known = ", ".join(allowed) or "none of evaluate.metrics, which lacks auc"
            raise InputError(f"{key} is '{metric}'; allowed: {known}")
