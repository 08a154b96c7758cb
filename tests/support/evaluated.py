"""Metrics of given predictions, without a model, on several numbers of ranks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.metrics.evaluation import Metrics
from trainer.models.base import BatchOutputs

CPU = torch.device("cpu")
LOSSES = {"value": "squared", "log_value": "poisson", "vectors": "in_batch_softmax"}
"""Losses that take an output."""
Columns = dict[str, np.ndarray]
"""Samples: `predictions` `[N]` or `[N, C]`, `labels`, `weights` and `groups` `[N]`."""


def metrics_of(names: list[str], labels: list[str]) -> Metrics:
    """Returns the metrics of a task for each label."""
    return Metrics(Config.model_validate({"data": {"labels": labels}, "evaluate": {"metrics": names}}), CPU)


def outputs(
    predictions: dict[str, Tensor], labels: Tensor, weights: Tensor, groups: Tensor | None = None
) -> BatchOutputs:
    """Returns the outputs of a model; labels are `[B, L]`, groups `[B, G]` or none."""
    none = torch.zeros(len(weights), 0, dtype=torch.int64)
    return BatchOutputs(torch.zeros(()), predictions, labels, weights, none if groups is None else groups)


def metrics_of_task(names: list[str] | None, evaluate: dict[str, Any] | None = None, **task: Any) -> Metrics:
    """Returns the metrics of one task, whose label is `label` and whose groups are `user`."""
    loss = LOSSES.get(task.get("output"), "binary")
    task = {"group": "user", "loss": loss, **task} | ({} if names is None else {"metrics": names})
    data = {"labels": ["label"], "groups": ["user"]}
    tree = {"data": data, "model": {"name": "own:model"}, "tasks": {"label": task}, "evaluate": evaluate or {}}
    return Metrics(Config.model_validate(tree), CPU)


def add(metrics: Metrics, columns: Columns, parts: int = 7) -> Metrics:
    """Adds samples in parts of unequal size, after samples of padding."""
    count = len(columns["labels"])
    padding = {
        "predictions": np.ones((3, *columns["predictions"].shape[1:])),
        "labels": np.ones(3),
        "weights": np.zeros(3),
    }
    for part in [None, *np.array_split(np.arange(count), parts)]:
        rows = {name: values[part] for name, values in columns.items()} if part is not None else padding
        groups = torch.tensor(rows["groups"]) if "groups" in rows else torch.zeros(len(rows["labels"])).long()
        predictions, labels, weights = (torch.tensor(rows[name]) for name in ("predictions", "labels", "weights"))
        metrics.update(outputs({"label": predictions}, labels[:, None], weights, groups[:, None]))
    return metrics


def computed(names: list[str] | None, columns: Columns, **settings: Any) -> dict[str, float]:
    """Returns the metrics of one task by name, on one rank."""
    metrics = add(metrics_of_task(names, **settings), columns)
    with process_group() as context:
        return {name: value for name, value in metrics.compute(context).items() if name != "samples"}


def on_all_ranks(tasks: list[dict], out: Path) -> None:
    """Computes metrics on 1, 2 and 4 ranks, each with other samples in another order, the last with most.

    Args:
        tasks: Names of metrics, settings, and columns of samples.
        out: Gets the metrics of each task, by number of ranks.
    """
    from ranks import run_on_ranks

    for ranks in (1, 2, 4):
        run_on_ranks(ranks, _rank, tasks, Path(f"{out}.{ranks}"))


def _rank(tasks: list[dict], out: Path) -> None:
    with process_group() as context:
        order = np.random.default_rng(context.world_size)
        found = []
        for task in tasks:
            columns = {name: np.array(values) for name, values in task["columns"].items()}
            shuffled = order.permutation(len(columns["labels"]))
            bounds = [len(shuffled) * (rank // 2) // context.world_size for rank in range(context.world_size)]
            mine = shuffled[slice(*[*bounds, len(shuffled)][context.rank : context.rank + 2])]
            metrics = metrics_of_task(task["names"], **task["settings"])
            add(metrics, {name: values[mine] for name, values in columns.items()}, parts=3)
            found.append(metrics.compute(context))
        if context.is_rank0:
            out.write_text(json.dumps(found))
