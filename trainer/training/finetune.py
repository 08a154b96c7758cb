"""Fine-tuning: a new run that starts from another run's checkpoint."""

from collections.abc import Callable
from typing import Any

from tabulate import tabulate

from trainer.checkpoint.mapping import WeightMap, Weights, match
from trainer.checkpoint.restore import fill, saved_shapes, shapes_of
from trainer.checkpoint.store import FOLDER, NAME, Checkpoint, Checkpoints
from trainer.config.data import DataConfig
from trainer.config.train import FinetuneConfig
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named
from trainer.training.sharded_model import ShardedModel

KEY = "finetune.checkpoint"
SHOWN = 3  # names per line of the report; run.json has all


def finetune(
    config: FinetuneConfig,
    data: DataConfig,
    model: ShardedModel,
    initialize: Callable[[], None],
    context: DistributedContext,
) -> dict[str, Any] | None:
    """Fills a fresh job from another run's checkpoint, if the configuration names one.

    Args:
        config: Which, and what may differ.
        data: The data of this run.
        model: Initialised; what is not filled stays as it is.
        initialize: Allocates the optimizers' state.
        context: This process among the ranks.

    Returns:
        What run.json keeps of it, None for a start from scratch.

    Raises:
        InputError: There is no such checkpoint, or it does not fit in a way that the configuration does not allow.
    """
    if config.checkpoint is None:
        return None
    source = broadcast_from_rank0(context, lambda: find_source(config.checkpoint or ""))
    if config.optimizer_state:
        initialize()
    tensors = model.tensors() if config.optimizer_state else model.weights()
    here = shapes_of(tensors, context)
    found = broadcast_from_rank0(context, lambda: _match(config, data, Weights.of(here), source))
    fill(source.url, tensors, found.sources, context)
    return {"checkpoint": source.url, "step": source.step, "optimizer_state": config.optimizer_state, **found.outcomes}


def find_source(url: str) -> Checkpoint:
    """Returns the newest checkpoint of a run directory, or the one that the URL is of.

    Raises:
        InputError: There is none, or it is damaged.
    """
    *run, folder, name = ["", "", *url.rstrip("/").split("/")]
    if folder == FOLDER and NAME.fullmatch(name):
        return _at(url, Checkpoints(RunDirectory("/".join(run[2:]) or ".", KEY)), int(name.removeprefix("step-")))
    checkpoints = Checkpoints(RunDirectory(url, KEY))
    with named(KEY, url):
        newest = checkpoints.newest()
    if newest is None:
        raise InputError(f"{KEY} is '{url}', which holds no committed checkpoint; name a run directory that does")
    return newest


def _at(url: str, checkpoints: Checkpoints, step: int) -> Checkpoint:
    with named(KEY, url):
        steps = checkpoints.steps()
        damage = checkpoints.damage(step) if step in steps else None
    known = ", ".join(str(other) for other in steps if other != step) or "none"
    if step not in steps:
        raise InputError(f"{KEY} is '{url}', which is no committed checkpoint; that run has those of steps: {known}")
    if damage:
        raise InputError(f"{KEY} is '{url}', which is damaged: {damage}; that run has also those of steps: {known}")
    return checkpoints.at(step)


def _match(config: FinetuneConfig, data: DataConfig, here: Weights, source: Checkpoint) -> WeightMap:
    found = match(config, data, here, Weights.of(saved_shapes(source.url)))
    print(
        f"fine-tuning from step {source.step:,}, {source.url}\n\n{render(found, config.optimizer_state)}\n", flush=True
    )
    for names, about, key, where in (
        (found.refused["missing"], "lacks '{}' of this model", "allow_missing", "there"),
        (found.refused["unexpected"], "holds '{}', which this model lacks", "ignore_unexpected", "here"),
    ):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise InputError(
                f"{KEY} is '{config.checkpoint}', which {about.format(names[0])}{more}; list it in finetune.{key}, or "
                f"say in finetune.names what it is called {where}"
            )
    return found


def render(found: WeightMap, optimizer_state: bool) -> str:
    """Returns a table of what becomes of the weights, for people."""
    rows = [[outcome.replace("_", " "), len(names), _some(names)] for outcome, names in found.outcomes.items()]
    state = "taken along" if optimizer_state else "from scratch"
    return tabulate(rows, headers=["outcome", "weights", "which"]) + f"\n\noptimizer state: {state}"


def _some(names: list[str]) -> str:
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
