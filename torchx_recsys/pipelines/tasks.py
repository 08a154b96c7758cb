"""Decides which steps of a pipeline to submit: the steps that have not succeeded with the same inputs.

Schedulers hold a step back until the steps before it have succeeded, so no process of the pipeline has to stay alive.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torchx.specs import AppState

from torchx_recsys.pipelines.file import Pipeline, Step
from torchx_recsys.pipelines.jobs import Look
from trainer.config.root import load_tree
from trainer.core.errors import InputError
from trainer.core.storage import digest


@dataclass(frozen=True)
class Task:
    """A step to submit.

    Attributes:
        step: The step.
        inputs: A hash of its inputs.
        before: The state of its last submission.
    """

    step: Step
    inputs: str
    before: Look


def tasks_of(
    pipeline: Pipeline, looks: Mapping[str, Look], scheduler: str, again: Collection[str], only: str | None = None
) -> dict[str, Task]:
    """Returns the steps to submit by name, each after the steps that it needs.

    Args:
        pipeline: The pipeline.
        looks: The current states of its steps.
        scheduler: The scheduler that is to run the tasks.
        again: Steps that run even if they have succeeded.
        only: The one step that may run; None for all.

    Raises:
        InputError: A step runs with other inputs, or a step that another needs runs elsewhere or must run first.
    """
    tasks: dict[str, Task] = {}
    numbers: dict[str, int] = {}
    for name, step in pipeline.steps.items():
        look = looks[name]
        inputs = _inputs(step, {before: numbers[before] for before in step.after})
        same = look.submission is not None and look.submission.inputs == inputs
        done = look.state == AppState.SUCCEEDED or look.is_active
        numbers[name] = look.number
        if (same and done and name not in again) or only not in (None, name):
            continue
        if look.has_run:
            raise InputError(
                f"step {name} still runs as {look.handle}, and is asked for again or has other inputs now; wait for it,"
                " or end it with `torchx pipeline cancel`"
            )
        numbers[name] += 1
        tasks[name] = Task(step, inputs, look)
    for name, task in tasks.items():
        for before in task.step.after:
            if before not in tasks:
                _check_kept(name, before, looks[before], scheduler, only)
    return tasks


def _check_kept(name: str, before: str, look: Look, scheduler: str, only: str | None) -> None:
    if only and look.state != AppState.SUCCEEDED:
        raise InputError(f"--only {only}: step {before}, which it needs, has not succeeded; leave --only out")
    if look.is_active and look.scheduler != scheduler:
        raise InputError(
            f"step {name} cannot wait on {scheduler} for step {before}, which runs as {look.handle}; wait until that"
            " has ended"
        )


def _inputs(step: Step, before: Mapping[str, int]) -> str:
    """Returns a hash of the inputs of a step."""
    return digest([step.component, step.words, _configuration(step.config), before])


def _configuration(name: str | None) -> object:
    """Returns the content of a configuration, so that a step runs again after an edit."""
    if name is None:
        return None
    try:
        return load_tree(name)
    except InputError:  # a file that only the job can see
        return None
