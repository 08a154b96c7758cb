"""The baselines of each kind of task; trains them, and measures them on every split."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torchx_recsys.apps.baselines.factors import matrix_factorization, user_and_item_means
from torchx_recsys.apps.baselines.learned import (
    boosted_trees,
    lightgbm_trees,
    linear_regression,
    logistic_regression,
    poisson_regression,
)
from torchx_recsys.apps.baselines.measure import Measured
from torchx_recsys.apps.baselines.problem import Fitted, LeftOut, Problem
from torchx_recsys.apps.baselines.ranks import MeasuredRanks
from torchx_recsys.apps.baselines.rates import class_rates, label_rate, mean, rate_by_group
from torchx_recsys.apps.baselines.retrieval import decayed_co_occurrence, ease, item_knn, popularity
from torchx_recsys.apps.baselines.rows import Split
from torchx_recsys.apps.engines.progress import progress_bar
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext

Fit = Callable[[Problem], Fitted]
LEARNED = {"boosted trees": boosted_trees, "LightGBM": lightgbm_trees}
BASELINES: Mapping[str, Mapping[str, Fit]] = {
    "probability": {"label rate": label_rate, "logistic regression": logistic_regression, **LEARNED},
    "value": {
        "mean": mean,
        "user and item means": user_and_item_means,
        "matrix factorization": matrix_factorization,
        "linear regression": linear_regression,
        **LEARNED,
    },
    "count": {"mean": mean, "Poisson regression": poisson_regression, **LEARNED},
    "vectors": {
        "popularity": popularity,
        "item-kNN": item_knn,
        "EASE": ease,
        "decayed co-occurrence": decayed_co_occurrence,
    },
    "classes": {"class rates": class_rates, "logistic regression": logistic_regression, **LEARNED},
}
"""The baselines by the kind of a task and by name."""


@dataclass
class Result:
    """A baseline of a task.

    Attributes:
        name: Its name.
        chosen: What was chosen on data.validation, in words.
        seconds: Time of its training and predictions.
        metrics: Its metrics on each split.
    """

    name: str
    chosen: str
    seconds: float
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass
class Results:
    """The baselines of a task.

    Attributes:
        task: Name of the task.
        found: The baselines.
        left_out: Why other baselines are not there.
        samples: Samples of each split with a weight.
    """

    task: str
    found: list[Result] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)


def measure(
    problem: Problem,
    splits: Sequence[Split],
    only: Sequence[str],
    context: DistributedContext,
    say: Callable[[str], None],
) -> Results:
    """Trains the baselines of a task, and measures them.

    Args:
        problem: The task.
        splits: The splits to measure on.
        only: Names of baselines. Empty: all.
        context: This process.
        say: Prints a line.

    Raises:
        InputError: A file cannot be read, or a value is not allowed.
    """
    results, fitted = Results(problem.name), list[Fitted]()
    for name, fit in baselines_of(problem):
        if only and name not in only:
            continue
        say(f"{problem.name}: {name}, {plural(len(problem.train), 'row')}")
        started = time.monotonic()
        try:
            fitted.append(fit(problem))
        except LeftOut as reason:
            results.left_out[name] = str(reason)
            say(f"{problem.name}: {name} is left out: {reason}")
        else:
            results.found.append(Result(name, fitted[-1].chosen, time.monotonic() - started))
    for split in splits:
        _measure_on(problem, split, fitted, results, context)
    return results


def baselines_of(problem: Problem) -> Iterator[tuple[str, Fit]]:
    """Yields the baselines of a task by name, with the label rates of its groups after the overall one."""
    for place, (name, fit) in enumerate(BASELINES[problem.kind].items()):
        yield name, fit
        if place == 0 and problem.kind == "probability":
            for column in problem.config.data.groups:
                yield f"label rate by {column}", lambda problem, column=column: rate_by_group(problem, column)


def _measure_on(
    problem: Problem, split: Split, fitted: Sequence[Fitted], results: Results, context: DistributedContext
) -> None:
    def begin() -> Measured | MeasuredRanks:
        return MeasuredRanks(problem, problem.items) if problem.items else Measured(problem, context)

    measured = [begin() for _ in fitted]
    with progress_bar(split.rows, " rows") as bar:
        for table in split.chunks(bar.update):
            for one, into, result in zip(fitted, measured, results.found, strict=True):
                started = time.monotonic()
                into.add(one.predict, table)
                result.seconds += time.monotonic() - started
    for into, result in zip(measured, results.found, strict=True):
        metrics = into.compute()
        results.samples[split.name] = int(metrics.pop("samples", 0))
        result.metrics[split.name] = metrics
