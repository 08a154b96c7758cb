"""Submits the steps of a pipeline: those that have not succeeded with the same inputs, all at once.

The schedulers hold a step back until those before it have succeeded, so no process of the pipeline has to stay alive.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from torchx.runner import Runner
from torchx.schedulers import get_scheduler_factories
from torchx.specs import AppDryRunInfo, AppState, AppStatus, CfgVal, InvalidRunConfigException, make_app_handle
from torchx.specs.api import is_started, is_terminal
from torchx.util.types import none_throws

from components.launch import ArgumentError
from pipelines.file import Pipeline, Step
from pipelines.record import Record, Submission
from schedulers.errors import SchedulerError
from trainer.config.root import load_tree
from trainer.core.digest import digest
from trainer.core.errors import InputError

LOCAL = "local_cwd"
SESSION = "torchx"


class _Findable(Protocol):
    """A scheduler that finds the job of a request whose submitter was killed."""

    def identity(self, request: Any) -> str: ...

    def find(self, identity: str) -> str | None: ...

    def cancel(self, app_id: str) -> None: ...


@dataclass(frozen=True)
class Look:
    """A step as it is now.

    Attributes:
        submission: Its newest submission; None if it was never submitted.
        state: The state of its job; None if there is no job, or its scheduler has forgotten it.
        status: The whole status; None if the job has succeeded earlier, or its scheduler has forgotten it.
    """

    submission: Submission | None
    state: AppState | None = None
    status: AppStatus | None = None

    @property
    def is_active(self) -> bool:
        """Whether the job has not ended."""
        return self.state is not None and not is_terminal(self.state)

    @property
    def has_run(self) -> bool:
        """Whether an active job has been started, and may be waiting for a restart."""
        return (
            self.is_active
            and self.status is not None
            and (is_started(self.status.state) or self.status.num_restarts > 0)
        )

    @property
    def handle(self) -> str:
        """The handle of the job; empty without one."""
        return self.submission.handle if self.submission else ""

    @property
    def scheduler(self) -> str:
        """The scheduler of the job; empty without one."""
        return self.submission.scheduler if self.submission else ""


class Steps:
    """The steps of a pipeline, with what became of them.

    Args:
        pipeline: The pipeline.
        runner: TorchX's runner.
    """

    def __init__(self, pipeline: Pipeline, runner: Runner) -> None:
        self.pipeline = pipeline
        self.record = Record(pipeline.out)
        self._runner = runner

    @cached_property
    def looks(self) -> dict[str, Look]:
        """The steps by name, as they are when they are first asked for; `look` looks again."""
        return self.look()

    def look(self) -> dict[str, Look]:
        """Returns the steps by name, as they are now."""
        newest = self.record.newest()
        return {name: self._look(newest.get(name)) for name in self.pipeline.steps}

    def _look(self, submission: Submission | None) -> Look:
        if submission is None or not submission.identity:
            return Look(submission)
        if submission.ended_as == AppState.SUCCEEDED.name:
            return Look(submission, AppState.SUCCEEDED)
        if not submission.handle:
            app_id = findable(submission.scheduler).find(submission.identity)
            if app_id is None:
                return Look(submission)
            handle = make_app_handle(submission.scheduler, SESSION, app_id)
            submission = self.record.update(submission, handle=handle)
        status = self._runner.status(submission.handle)
        if status is None:
            return Look(submission, AppState[submission.ended_as] if submission.ended_as else None)
        if is_terminal(status.state):
            submission = self.record.update(submission, ended_as=status.state.name)
        return Look(submission, status.state, status)


def findable(scheduler: str) -> _Findable:
    """Returns a scheduler on which pipelines run.

    Raises:
        InputError: Pipelines do not run on it.
    """
    found: Any = get_scheduler_factories()[scheduler](SESSION)
    if not hasattr(found, "find"):
        raise InputError(f"-s {scheduler}: its jobs cannot wait for each other; use local_cwd, slurm or jobset")
    return found


@dataclass(frozen=True)
class Task:
    """A step that is to be submitted.

    Attributes:
        step: The step.
        number: The number of its submission.
        inputs: A short name for what it is made of.
        before: Its last submission.
    """

    step: Step
    number: int
    inputs: str
    before: Look


class Submitter:
    """Submits steps to a scheduler.

    Args:
        steps: The steps.
        scheduler: The scheduler.
        options: Options of the scheduler that win over the file's.
        runner: TorchX's runner.
        workspace: TorchX's workspace.
    """

    def __init__(
        self, steps: Steps, scheduler: str, options: Mapping[str, CfgVal], runner: Runner, workspace: str | None
    ) -> None:
        self._steps = steps
        self._scheduler = scheduler
        self._options = options
        self._runner = runner
        self._workspace = workspace
        self._findable = findable(scheduler)

    def dry_runs(self) -> dict[str, AppDryRunInfo]:
        """Returns the requests of all steps, without the jobs that they wait for.

        Raises:
            InputError: A component refuses its arguments, or the scheduler its options.
        """
        return {name: self._dry_run(step, []) for name, step in self._steps.pipeline.steps.items()}

    def tasks(self, again: Collection[str], only: str | None = None) -> list[Task]:
        """Returns what has to be submitted, each step after those that it needs.

        Args:
            again: Steps that run even if they have succeeded.
            only: The one step that may run; None for all.

        Raises:
            InputError: A step runs with other inputs, or one that another waits for runs elsewhere or must run first.
        """
        tasks: dict[str, Task] = {}
        numbers: dict[str, int] = {}
        for name, step in self._steps.pipeline.steps.items():
            look = self._steps.looks[name]
            last = look.submission.number if look.submission else 0
            inputs = _inputs(step, {before: numbers[before] for before in step.after})
            same = look.submission is not None and look.submission.inputs == inputs
            done = look.state == AppState.SUCCEEDED or look.is_active
            if (same and done and name not in again) or only not in (None, name):
                numbers[name] = last
                if (
                    only is not None
                    and name in self._steps.pipeline.steps[only].after
                    and look.state != AppState.SUCCEEDED
                ):
                    raise InputError(f"--only {only}: step {name}, which it needs, has not succeeded; leave --only out")
                continue
            if look.has_run:
                raise InputError(
                    f"step {name} still runs as {look.handle}, and is asked for again or has other inputs now; wait for"
                    " it, or end it with `torchx pipeline cancel`"
                )
            numbers[name] = last + 1
            tasks[name] = Task(step, last + 1, inputs, look)
        for task in tasks.values():
            for before in task.step.after:
                elsewhere = self._steps.looks[before]
                if before not in tasks and elsewhere.is_active and elsewhere.scheduler != self._scheduler:
                    raise InputError(
                        f"step {task.step.name} cannot wait on {self._scheduler} for step {before}, which runs as"
                        f" {elsewhere.handle}; wait until that has ended"
                    )
        return [*tasks.values()]

    def submit(self, task: Task, handles: Mapping[str, str]) -> str:
        """Submits a step and returns its handle.

        Args:
            task: The step.
            handles: The jobs of the steps before it that have not ended.

        Raises:
            SchedulerError: The scheduler refuses it, as one of these jobs has failed above all.
            InputError: Somebody else submits it at the same time.
        """
        self._clear(task.before)
        after = [handles[name] for name in task.step.after if name in handles]
        dry_run = self._dry_run(task.step, after)
        submission = self._steps.record.begin(
            Submission(
                step=task.step.name,
                number=task.number,
                inputs=task.inputs,
                component=task.step.component,
                words=task.step.words,
                scheduler=self._scheduler,
                identity=self._findable.identity(dry_run.request),
                after=after,
            )
        )
        handle = self._runner.schedule(dry_run)
        self._steps.record.update(submission, handle=handle)
        return handle

    def _clear(self, look: Look) -> None:
        """Ends what is left of a step: a job that waits for one that failed, processes whose supervisor was killed."""
        if look.is_active:
            self._runner.cancel(look.handle)
            self._runner.wait(look.handle, wait_interval=1)
        elif look.state == AppState.FAILED and look.submission and look.scheduler == LOCAL:
            findable(LOCAL).cancel(look.submission.identity)

    def _dry_run(self, step: Step, after: list[str]) -> AppDryRunInfo:
        try:
            cfg: dict[str, CfgVal] = {**self._cfg(step), **self._options}
            if self._scheduler == LOCAL:
                cfg["detach"] = True
            if after:
                cfg["after"] = after
            return self._runner.dryrun_component(
                step.component, step.words, self._scheduler, cfg=cfg, workspace=self._workspace
            )
        except (ArgumentError, SchedulerError, InvalidRunConfigException) as error:
            raise InputError(f"pipeline '{self._steps.pipeline.source}': steps.{step.name}: {error}") from error

    def _cfg(self, step: Step) -> dict[str, CfgVal]:
        """Returns the options that the file gives a step; a text is read as `-cfg` reads it."""
        options = self._runner.scheduler_run_opts(self._scheduler)
        given: dict[str, Any] = step.options.get(self._scheduler, {})
        try:
            texts = {name: value for name, value in given.items() if isinstance(value, str) and options.get(name)}
            cast = {name: none_throws(options.get(name)).cast_to_type(value) for name, value in texts.items()}
            return options.cfg_from_json_repr(json.dumps({**given, **cast}))
        except (InvalidRunConfigException, ValueError, TypeError, AttributeError, IndexError) as error:
            raise SchedulerError(f"options.{self._scheduler}: {error}") from error


def _inputs(step: Step, before: Mapping[str, int]) -> str:
    """Returns a short name for what a step is made of: equal inputs have equal names."""
    return digest([step.component, step.words, _configuration(step.config), before])


def _configuration(name: str | None) -> object:
    """Returns the content of a configuration, so that a step runs again after it was edited."""
    if name is None:
        return None
    try:
        return load_tree(name)
    except InputError:  # only the job can see it
        return None
