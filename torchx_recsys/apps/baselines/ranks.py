"""Measures scores of items: the rank of each query's item among all items, and the trainer's own metrics of ranks."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from torchx_recsys.apps.baselines.items import Items, slices
from torchx_recsys.apps.baselines.measure import finite
from torchx_recsys.apps.baselines.problem import LeftOut, Predict, Problem
from torchx_recsys.apps.baselines.rows import Table
from trainer.batches.batch import to_batch
from trainer.core.registry import find_by_name
from trainer.metrics.registry import built_in, metrics_of
from trainer.metrics.seen_items import SeenItems

CHOSEN_BY = 10_000  # rows of data.validation that an option is chosen by
SCORES = 1 << 24  # scores that are in memory at the same time


class MeasuredRanks:
    """The metrics of a baseline over all items, as `ItemRanks` has them of vectors.

    Args:
        problem: The task.
        items: The items.
    """

    def __init__(self, problem: Problem, items: Items) -> None:
        self._problem, self._items = problem, items
        self._functions, data = functions_of(problem), problem.config.data
        self._seen = SeenItems(items.ids, data, torch.device("cpu")) if data.catalogue.exclude else None
        self._state, self._samples = np.zeros(len(items) + 2), 0

    def add(self, predict: Predict, table: Table) -> None:
        """Adds rows."""
        self._samples += int((table.weights > 0).sum())
        for part in slices(table, max(1, SCORES // len(self._items))):
            self._add(predict, part)

    def _add(self, predict: Predict, table: Table) -> None:
        weights = self._problem.weights(table) * (self._problem.labels(table) > 0)
        self._state[-1] += weights.sum()
        wanted = self._items.wanted(table)
        asked = np.flatnonzero((weights > 0) & (wanted >= 0))
        scores, own = predict(table).astype(np.float32)[asked], wanted[asked]  # rounded, so that equal scores tie
        mine = scores[np.arange(len(asked)), own]
        if self._seen:
            number = np.full(len(table), -1)
            number[asked] = np.arange(len(asked))
            row, place = self._seen.of(to_batch(table.rows, table.data, 0.0).sparse).numpy().T
            there = number[row] >= 0
            scores[number[row[there]], place[there]] = np.nan  # neither above nor level with any item
            scores[np.arange(len(asked)), own] = mine
        above, ties = (scores > mine[:, None]).sum(1), (scores == mine[:, None]).sum(1)
        each = weights[asked] / ties
        np.add.at(self._state, above, each)
        np.add.at(self._state, above + ties, -each)

    def compute(self) -> dict[str, float]:
        """Returns the metrics over all rows."""
        state = torch.from_numpy(self._state)
        found = {f"{name}{part}": value for name, of in self._functions.items() for part, value in of(state).items()}
        return finite(found | {"samples": float(self._samples)})


def functions_of(problem: Problem) -> Mapping[str, Callable[[Any], dict[str, float]]]:
    """Returns the metrics of a task over all items, as functions of the ranks.

    Raises:
        LeftOut: It has none.
    """
    found = {name: built_in(name, "vectors") for name in metrics_of(problem.name, problem.config)[1]}
    functions = {
        name: _bound(find_by_name("evaluate.metrics", entry[0].function, {}), entry[1])
        for name, entry in found.items()
        if entry and entry[0].over_items
    }
    if not functions:
        raise LeftOut(
            f"tasks.{problem.name} has no metric over all items; name some in tasks.{problem.name}.metrics, such as "
            "recall@10"
        )
    return functions


def _bound(function: Callable[..., dict[str, float]], numbers: tuple[float, ...]) -> Callable[[Any], dict[str, float]]:
    return lambda state: function(state, *numbers)


def loss_of_ranks(problem: Problem, items: Items, predict: Predict) -> float:
    """Returns the first metric of a task over all items, negated: every one of them is better if it is higher.

    Of many rows of data.validation only some are asked, spread evenly over them.
    """
    table = problem.validation
    assert table is not None
    step = -(-len(table) // CHOSEN_BY)
    asked = Table(table.rows.take(np.arange(0, len(table), step)), table.data)
    measured = MeasuredRanks(problem, items)
    measured.add(predict, asked)
    return -next(iter(measured.compute().values()), 0.0)
