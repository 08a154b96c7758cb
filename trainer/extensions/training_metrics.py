"""Metrics of the samples that a run trains on, over windows of them: predictions from before the step learned of them.

A window ends at a report, so that ranks add up only there, and the next begins. A sliding or decayed window would need
accumulators that forget, which those of evaluations do not.
"""

from collections.abc import Iterator, Mapping
from math import ceil

from trainer.config.root import Config
from trainer.config.tasks import TaskConfig
from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError, some_of
from trainer.metrics.evaluation import Metrics
from trainer.metrics.registry import METRICS, built_in, own_metric, prediction_kind
from trainer.training.watchers import RunView, Watcher

KEY = "report.training_metrics"
SAMPLES = "window_samples"


def check(config: Config, context: DistributedContext) -> None:
    """Refuses metrics that are unknown, or suit no task.

    Raises:
        InputError: There is such a metric.
    """
    tasks = config.named_tasks().values()
    for name in config.report.training_metrics:
        if not any(_suits(name, task, config) for task in tasks):
            allowed = some_of(one for one in METRICS if any(_suits(_example(one), task, config) for task in tasks))
            raise InputError(f"{KEY} has '{name}', which suits no task of this model; allowed: {allowed or 'none'}")


def _example(form: str) -> str:
    return form.replace("@threshold", "@0.5").replace("@k", "@10")


def _suits(name: str, task: TaskConfig, config: Config) -> bool:
    """Returns whether a task's samples have the metric; metrics over all items need vectors of the whole catalogue."""
    kind = prediction_kind(task)
    if (found := built_in(name, kind)) is None:
        takes = getattr(own_metric(KEY, name), "takes", None)
        return takes in (None, kind)
    entry, _ = found
    is_missing_group = entry.grouped and task.group is None
    is_numeric = entry.binary and task.label in config.data.numeric_labels
    return kind in entry.takes and not (entry.over_items or is_missing_group or is_numeric)


def measured(config: Config) -> Config:
    """Returns the configuration with the metrics of training in place of those of evaluations."""
    names = config.report.training_metrics
    tasks = {
        key: task.model_copy(update={"metrics": [name for name in names if _suits(name, task, config)]})
        for key, task in config.named_tasks().items()
    }
    return config.model_copy(update={"tasks": tasks})


class TrainingMetrics(Watcher):
    """Computes metrics over the samples of a window of steps, on all ranks.

    A window that this job has not seen from its beginning, after a resume, is left out. So every number is that of an
    uninterrupted run.
    """

    def __init__(self) -> None:
        self._metrics: Metrics | None = None
        self._begun_at = self._added = self._steps = -1

    def begin(self, run: RunView, step: int, last_step: int) -> None:
        """Begins the first window."""
        if self._metrics is None:
            report, batch = run.config.report, run.config.data.global_batch_size
            reports = max(1, ceil(report.window_samples / (batch * report.interval_steps)))
            self._steps = reports * report.interval_steps
            self._begin_window(run, step)

    def after_step(self, run: RunView, step: int) -> None:
        """Adds the samples of the step."""
        self._add(run, step)

    def numbers(self, run: RunView, step: int) -> Mapping[str, float]:
        """Returns the metrics of the window that ends with the step; none within a window."""
        self._add(run, step)
        if step % self._steps:
            return {}
        assert self._metrics
        is_whole = self._begun_at == step - self._steps
        found = dict(_renamed(self._metrics.compute(run.context))) if is_whole else {}
        self._begin_window(run, step)
        return found

    def _add(self, run: RunView, step: int) -> None:
        assert self._metrics
        if step != self._added:  # `numbers` comes before `after_step`
            for outputs in run.outputs():
                self._metrics.update(outputs)
        self._added = step

    def _begin_window(self, run: RunView, step: int) -> None:
        self._begun_at = step
        self._metrics = Metrics(measured(run.config), run.context.device)


def _renamed(found: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, value in found.items():
        yield SAMPLES if name == "samples" else name, value
