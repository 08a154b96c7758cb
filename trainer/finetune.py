"""Fine-tuning: a new run that starts from another run's checkpoint."""

from collections.abc import Callable
from typing import Any

from tabulate import tabulate

from trainer.checkpoint import FOLDER, NAME, Checkpoint, Checkpoints
from trainer.data.schema import DataConfig
from trainer.distributed import Ranks, from_main
from trainer.job import Job
from trainer.matching import FinetuneConfig, Match, Weights, match
from trainer.restore import fill, saved_shapes, shapes_of
from trainer.run_directory import RunDirectory
from trainer.state import all_tensors, model_tensors
from trainer.storage import named

KEY = "finetune.checkpoint"
SHOWN = 3  # names per line of the report; run.json has all


def finetune(
    config: FinetuneConfig, data: DataConfig, job: Job, rehearse: Callable[[], None], ranks: Ranks
) -> dict[str, Any] | None:
    """Fills a fresh job from another run's checkpoint, if the configuration names one.

    Args:
        config: Which, and what may differ.
        data: The data of this run.
        job: Initialised; what is not filled stays as it is.
        rehearse: Makes the optimizers have their state.
        ranks: This process among the ranks.

    Returns:
        What run.json keeps of it, None for a start from scratch.

    Raises:
        ValueError: There is no such checkpoint, or it does not fit in a way that the configuration does not allow.
    """
    if config.checkpoint is None:
        return None
    source = from_main(ranks, lambda: find_source(config.checkpoint or ""))
    if config.optimizer_state:
        rehearse()
    tensors = all_tensors(job.model, job.optimizers) if config.optimizer_state else model_tensors(job.model)
    here = shapes_of(tensors, ranks)
    found = from_main(ranks, lambda: _match(config, data, Weights.of(here), source))
    fill(source.url, tensors, found.sources, ranks)
    return {"checkpoint": source.url, "step": source.step, "optimizer_state": config.optimizer_state, **found.outcomes}


def find_source(url: str) -> Checkpoint:
    """Returns the newest checkpoint of a run directory, or the one that the URL is of.

    Raises:
        ValueError: There is none, or it is damaged.
    """
    *run, folder, name = ["", "", *url.rstrip("/").split("/")]
    if folder == FOLDER and NAME.fullmatch(name):
        return _at(url, Checkpoints(RunDirectory("/".join(run[2:]) or ".", KEY)), int(name.removeprefix("step-")))
    checkpoints = Checkpoints(RunDirectory(url, KEY))
    with named(KEY, url):
        newest = checkpoints.newest()
    if newest is None:
        raise ValueError(f"{KEY} is '{url}', which holds no committed checkpoint; name a run directory that does")
    return newest


def _at(url: str, checkpoints: Checkpoints, step: int) -> Checkpoint:
    with named(KEY, url):
        steps = checkpoints.steps()
        damage = checkpoints.damage(step) if step in steps else None
    if step not in steps:
        known = ", ".join(map(str, steps)) or "none"
        raise ValueError(f"{KEY} is '{url}', which is no committed checkpoint; that run has those of steps: {known}")
    if damage:
        raise ValueError(f"{KEY} is '{url}', which is damaged: {damage}; choose another")
    return checkpoints.at(step)


def _match(config: FinetuneConfig, data: DataConfig, here: Weights, source: Checkpoint) -> Match:
    found = match(config, data, here, Weights.of(saved_shapes(source.url)))
    print(
        f"fine-tuning from step {source.step:,}, {source.url}\n\n{render(found, config.optimizer_state)}\n", flush=True
    )
    for names, about, key, where in (
        (found.refused["missing"], "lacks '{}' of this model", "new", "there"),
        (found.refused["unused"], "holds '{}', which this model lacks", "unused", "here"),
    ):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise ValueError(
                f"{KEY} is '{config.checkpoint}', which {about.format(names[0])}{more}; list it in finetune.{key}, or "
                f"say in finetune.names what it is called {where}"
            )
    return found


def render(found: Match, optimizer_state: bool) -> str:
    """Returns a table of what becomes of the weights, for people."""
    rows = [[outcome.replace("_", " "), len(names), _some(names)] for outcome, names in found.outcomes.items()]
    state = "taken along" if optimizer_state else "from scratch"
    return tabulate(rows, headers=["outcome", "weights", "which"]) + f"\n\noptimizer state: {state}"


def _some(names: list[str]) -> str:
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    return ", ".join([*names[:SHOWN], *more])
