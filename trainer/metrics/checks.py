"""Refuses, before training, metrics that evaluations cannot compute, and choices by metrics that are not computed."""

from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.config.tasks import TaskConfig
from trainer.core.errors import InputError
from trainer.metrics.registry import (
    BuiltIn,
    Kind,
    built_in,
    higher_is_better,
    metrics_for,
    metrics_of,
    own_metric,
    prediction_kind,
)

WORDS = {
    "probability": "a logit or a log-probability",
    "value": "a value",
    "count": "the logarithm of a value",
    "classes": "scores of classes",
    "vectors": "vectors",
}


def check_metrics(config: Config) -> None:
    """Refuses metrics that are unknown, or that do not suit their task.

    Raises:
        InputError: There is such a metric, or a key for metrics within groups without such a metric.
    """
    grouped = False
    for name, task in config.named_tasks().items():
        key, metrics = metrics_of(name, config)
        for metric in metrics:
            _check_kind(key, metric, name, task)
            if found := built_in(metric, prediction_kind(task)):
                _check_data(f"{key} has '{metric}'", found[0], name, task, config.data)
                grouped |= found[0].grouped
    if config.evaluate.group_sample < 1 and not grouped:
        raise InputError(
            f"evaluate.group_sample is {config.evaluate.group_sample:g}, but no task has a metric within groups, such "
            "as gauc; add one or leave it out"
        )


def _check_kind(key: str, metric: str, name: str, task: TaskConfig) -> None:
    kind = prediction_kind(task)
    takes = _takes(key, metric, kind)
    if takes and kind not in takes:
        suited = ", ".join(name for name, entry in metrics_for(kind).items() if kind in entry.takes)
        raise InputError(
            f"{key} has '{metric}', which takes {' or '.join(WORDS[one] for one in takes)}, but tasks.{name} gives "
            f"{WORDS[kind]}; set tasks.{name}.metrics to some of: {suited}"
        )


def _takes(key: str, metric: str, kind: Kind) -> tuple[str, ...]:
    found = built_in(metric, kind)
    if found:
        return found[0].takes
    own = getattr(own_metric(key, metric), "takes", None)
    return (own,) if own else ()


def _check_data(given: str, metric: BuiltIn, name: str, task: TaskConfig, data: DataConfig) -> None:
    if metric.grouped and task.group is None:
        raise InputError(
            f"{given}, which ranks the samples of a group, but tasks.{name}.group is not set; set it to a column of "
            "data.groups"
        )
    if metric.over_items and not data.catalogue.items:
        raise InputError(f"{given}, which ranks all items, but data.catalogue.items is empty; name the catalogue")
    if metric.binary and task.label in data.numeric_labels:
        raise InputError(
            f"{given}, which takes labels in [0, 1], but data.numeric_labels has '{task.label}', the label of "
            f"tasks.{name}; leave it out there, or set tasks.{name}.metrics to others"
        )


def directions(config: Config) -> dict[str, bool]:
    """Returns the metrics of all tasks that have a better direction, each with whether higher is better.

    With several tasks, `/TASK` follows their names.
    """
    tasks, found = config.named_tasks(), {}
    for task in tasks:
        suffix = f"/{task}" if len(tasks) > 1 else ""
        for name in metrics_of(task, config)[1]:
            if (higher := higher_is_better(name)) is not None:
                found[f"{name}{suffix}"] = higher
    return found


def check_watched_metrics(config: Config) -> None:
    """Refuses to choose the best evaluation by a metric that evaluations do not compute, or that has no direction.

    Raises:
        InputError: There is such a metric.
    """
    allowed = directions(config)
    watched = {
        "checkpoint.keep.best": config.checkpoint.keep.best,
        "train.stop_early.metric": config.train.stop_early.metric,
    }
    for key, metric in watched.items():
        if metric and metric not in allowed:
            known = ", ".join(allowed) or "none of evaluate.metrics, which lacks auc"
            raise InputError(f"{key} is '{metric}'; allowed: {known}")
