"""The table of metrics by name: the predictions that each takes, and whether a higher value is better.

Free of torch, so that checkpoints are listed without it: the code of a metric is imported when it is used.
"""

import re
from typing import Any, Literal, NamedTuple

from trainer.config.root import Config
from trainer.config.tasks import Output, TaskConfig
from trainer.core.errors import InputError
from trainer.core.registry import find_by_name

Kind = Literal["probability", "value", "count", "classes", "vectors"]
"""What a prediction is: a probability (as its logit or logarithm), a value, a value above 0 (as its logarithm), a score
for each class, or vectors."""


class BuiltIn(NamedTuple):
    """A built-in metric.

    Attributes:
        accumulator: Class of the accumulator, `package.module:Class`, which metrics of a task share.
        function: Computes the metric, `package.module:function`, from the accumulator's total and the name's number.
        takes: The kinds of prediction that it takes.
        higher_is_better: The direction that is better; None if neither is.
        binary: Whether its labels must be in [0, 1].
        grouped: Whether it ranks the samples of a group.
        over_items: Whether it ranks all items of the catalogue.
    """

    accumulator: str
    function: str
    takes: tuple[Kind, ...]
    higher_is_better: bool | None
    binary: bool = False
    grouped: bool = False
    over_items: bool = False


def _of_order(function: str) -> BuiltIn:
    return _binary(function, "LogitHistogram", True)


def _of_sums(function: str, higher_is_better: bool | None) -> BuiltIn:
    return _binary(function, "BinarySums", higher_is_better)


def _binary(function: str, accumulator: str, higher_is_better: bool | None) -> BuiltIn:
    module = "trainer.metrics.binary"
    return BuiltIn(f"{module}:{accumulator}", f"{module}:{function}", ("probability",), higher_is_better, binary=True)


def _of_values(function: str, higher_is_better: bool) -> BuiltIn:
    module = "trainer.metrics.values_and_classes"
    return BuiltIn(f"{module}:Errors", f"{module}:{function}", ("value", "count"), higher_is_better)


def _of_counts(function: str, higher_is_better: bool | None) -> BuiltIn:
    module = "trainer.metrics.values_and_classes"
    return BuiltIn(f"{module}:CountSums", f"{module}:{function}", ("count",), higher_is_better)


def _of_classes(function: str, higher_is_better: bool, accumulator: str = "ClassSums") -> BuiltIn:
    module = "trainer.metrics.values_and_classes"
    return BuiltIn(f"{module}:{accumulator}", f"{module}:{function}", ("classes",), higher_is_better)


def _of_pairs(function: str, accumulator: str, grouped: bool) -> BuiltIn:
    function = f"trainer.metrics.pairs:{function}"
    return BuiltIn(f"trainer.metrics.{accumulator}", function, ("value", "count"), True, grouped=grouped)


def _of_groups(function: str, binary: bool = False) -> BuiltIn:
    module, kinds = "trainer.metrics.groups", ("probability", "value", "count")
    return BuiltIn(f"{module}:GroupedSamples", f"{module}:{function}", kinds, True, binary, grouped=True)


def _of_items(function: str) -> BuiltIn:
    module = "trainer.metrics.retrieval"
    return BuiltIn(f"{module}:ItemRanks", f"{module}:{function}", ("vectors",), True, over_items=True)


METRICS = {
    "auc": _of_order("auc"),
    "auprc": _of_order("auprc"),
    "accuracy@threshold": _of_order("accuracy"),
    "precision@threshold": _of_order("precision"),
    "recall@threshold": _of_order("recall"),
    "normalized_entropy": _of_sums("normalized_entropy", False),
    "log_loss": _of_sums("log_loss", False),
    "calibration": _of_sums("calibration", None),  # the best is 1
    "label_rate": _of_sums("label_rate", None),
    "ece": _binary("ece", "ReliabilityBins", False),
    "mae": _of_values("mae", False),
    "mse": _of_values("mse", False),
    "rmse": _of_values("rmse", False),
    "r2": _of_values("r2", True),
    "poisson_deviance": _of_counts("poisson_deviance", False),
    "xauc": _of_pairs("xauc", "pairs:AllSamples", grouped=False),
    "accuracy": _of_classes("accuracy", True),
    "accuracy@k": _of_classes("accuracy_of_first", True, "ClassRanks"),
    "cross_entropy": _of_classes("cross_entropy", False),
    "gauc": _of_groups("gauc", binary=True),
    "gauc_by_samples": _of_groups("gauc_by_samples", binary=True),
    "grouped_xauc": _of_pairs("grouped_xauc", "groups:GroupedSamples", grouped=True),
    "ndcg@k": _of_groups("ndcg"),
    "mrr": _of_groups("mrr"),
    "recall@k": _of_groups("recall"),
    "hit_rate@k": _of_groups("hit_rate"),
}
METRICS_OF_KIND: dict[Kind | None, dict[str, BuiltIn]] = {
    "vectors": {
        "recall@k": _of_items("recall"),
        "hit_rate@k": _of_items("recall"),  # as every query has one item to be found
        "ndcg@k": _of_items("ndcg"),
        "mrr": _of_items("mrr"),
    },
    "count": {"calibration": _of_counts("calibration", None)},
    "classes": {"auc": _of_classes("auc", True, "ClassHistograms")},
}
"""What metrics of METRICS are for predictions of a kind: of vectors, all items are ranked, not samples of a group."""
DEFAULTS: dict[Kind, list[str]] = {
    "probability": ["auc", "normalized_entropy", "log_loss", "calibration", "label_rate"],
    "value": ["mae", "rmse"],
    "count": ["poisson_deviance", "calibration", "mae", "rmse"],
    "classes": ["accuracy", "cross_entropy"],
    "vectors": [],
}
NUMBERS = {
    "threshold": (r"0?\.\d*[1-9]\d*", float, "a number between 0 and 1, such as {}@0.5"),
    "k": (r"[1-9]\d*", int, "a whole number above 0, such as {}@10"),
}
"""The numbers in names of metrics: pattern, type, and description."""


def prediction_kind(task: TaskConfig) -> Kind:
    """Returns the kind of a task's prediction."""
    if task.loss == "softmax":
        return "classes"
    kinds: dict[Output | None, Kind] = {"value": "value", "log_value": "count", "vectors": "vectors"}
    return kinds.get(task.output, "probability")


def metrics_for(kind: Kind | None) -> dict[str, BuiltIn]:
    """Returns the metrics by name, as they are for a kind of prediction."""
    return METRICS | METRICS_OF_KIND.get(kind, {})


def built_in(name: str, kind: Kind | None = None) -> tuple[BuiltIn, tuple[float, ...]] | None:
    """Returns the built-in metric of a name and the number in the name, if any; None without such a metric.

    Args:
        name: The name.
        kind: The kind of prediction, which decides between metrics of one name.
    """
    metrics = metrics_for(kind)
    if name in metrics and "@" not in name:
        return metrics[name], ()
    stem, _, written = name.partition("@")
    for number, (form, read, _) in NUMBERS.items():
        if (found := metrics.get(f"{stem}@{number}")) and re.fullmatch(form, written):
            return found, (read(written),)
    return None


def own_metric(key: str, name: str) -> Any:
    """Returns the user's own metric class, or explains the error in the name of a built-in metric.

    Args:
        key: The key, for messages.
        name: `package.module:Class`.

    Raises:
        InputError: There is no such metric, or the number in its name is missing or wrong.
    """
    stem = name.partition("@")[0]
    if forms := [known for known in METRICS if known.partition("@")[0] == stem]:
        raise InputError(f"{key} has '{name}'; write {' or '.join(map(_usage, forms))}")
    return find_by_name(key, name, METRICS)


def _usage(form: str) -> str:
    stem, _, number = form.partition("@")
    return f"{form} with {NUMBERS[number][2].format(stem)}" if number else form


def higher_is_better(metric: str) -> bool | None:
    """Returns whether a higher value of a metric is better, False if a lower one is, None if neither.

    Args:
        metric: A name, followed by `/TASK` where there are several tasks.

    Raises:
        InputError: There is no such metric.
    """
    name = metric.partition("/")[0]
    found = built_in(name)
    return found[0].higher_is_better if found else own_metric("checkpoint.keep.best", name).higher_is_better


def built_in_direction(metric: str) -> bool | None:
    """Returns the same as `higher_is_better` for a name in results; None also for a metric of the user's own."""
    name = metric.partition("/")[0]
    found = built_in(name) or built_in(name, "vectors")
    return found[0].higher_is_better if found else None


def result_name(metric: str) -> str:
    """Returns a metric's name in results: its own name, or the snake-case name of the user's own class.

    Args:
        metric: As for `higher_is_better`.
    """
    name, slash, task = metric.rpartition(":")[2].partition("/")
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower() + slash + task


def metrics_of(task: str, config: Config) -> tuple[str, list[str]]:
    """Returns the key that names a task's metrics, and the metrics: by default, those for its kind of prediction."""
    settings = config.named_tasks()[task]
    if settings.metrics is not None:
        return f"tasks.{task}.metrics", settings.metrics
    if config.evaluate.metrics is not None:
        return "evaluate.metrics", config.evaluate.metrics
    numeric = settings.label in config.data.numeric_labels
    kind = prediction_kind(settings)
    names = [name for name in DEFAULTS[kind] if not (numeric and metrics_for(kind)[name].binary)]
    return "evaluate.metrics", names
