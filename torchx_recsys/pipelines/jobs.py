"""Submits jobs, each noted before its submission, so that none is submitted twice whatever is killed."""

import argparse
import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torchx.runner import Runner
from torchx.runner.config import apply, get_config
from torchx.schedulers import get_scheduler_factories
from torchx.specs import AppDryRunInfo, AppState, AppStatus, CfgVal, InvalidRunConfigException, make_app_handle
from torchx.specs.api import is_started, is_terminal
from torchx.util.types import none_throws

from components.cli.base import check_scheduler_args
from components.cli.defaults import cast, check_arguments, check_options
from components.launch import ArgumentError
from schedulers.code.workspace import way_of
from schedulers.errors import MaybeSubmitted, SchedulerError
from schedulers.job_records import remember
from torchx_recsys.pipelines.record import Record, Submission
from trainer.core.errors import InputError

LOCAL = "local_cwd"
SESSION = "torchx"
Options = dict[str, dict[str, Any]]
"""Options of schedulers, by scheduler."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A component with its arguments.

    Attributes:
        name: Its name in the record.
        key: The key that describes it, with which messages begin.
        component: The component.
        words: The component's arguments as `torchx run` takes them.
        options: Options of schedulers, by scheduler.
    """

    name: str
    key: str
    component: str
    words: list[str]
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """The current state of a job.

    Attributes:
        submission: Its newest submission; None if it was never submitted.
        state: Its state; None if there is no job, or its scheduler has forgotten it.
        status: Its whole status; None if it succeeded earlier, or its scheduler has forgotten it.
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
        """Whether an active job has started before, even if it is now waiting for a restart."""
        status = self.status
        return self.is_active and status is not None and (is_started(status.state) or status.num_restarts > 0)

    @property
    def number(self) -> int:
        """How often it was submitted."""
        return self.submission.number if self.submission else 0

    @property
    def handle(self) -> str:
        """The handle; empty without a job."""
        return self.submission.handle if self.submission else ""

    @property
    def scheduler(self) -> str:
        """The scheduler; empty without a job."""
        return self.submission.scheduler if self.submission else ""


class _Findable(Protocol):
    """A scheduler that can find the job of a request after its submitter was killed."""

    def identity(self, request: Any) -> str: ...

    def find(self, identity: str) -> str | None: ...

    def cancel(self, app_id: str) -> None: ...


def findable(scheduler: str) -> _Findable:
    """Returns a scheduler that can find jobs again.

    Raises:
        InputError: The scheduler cannot do this.
    """
    found: Any = get_scheduler_factories()[scheduler](SESSION)
    if not hasattr(found, "find"):
        raise InputError(f"-s {scheduler}: its jobs cannot wait for each other; use local_cwd, slurm or jobset")
    return found


class Target:
    """A scheduler, with its options from the command line and the user's files.

    Args:
        scheduler: The scheduler.
        options: Options that take precedence over a job's own.
        runner: TorchX's runner.
        workspace: TorchX's workspace.

    Raises:
        InputError: The scheduler cannot find jobs again.
    """

    def __init__(self, scheduler: str, options: Mapping[str, CfgVal], runner: Runner, workspace: str | None) -> None:
        self.scheduler = scheduler
        self.identity = findable(scheduler).identity
        self._options = options
        self._runner = runner
        self._workspace = workspace

    @classmethod
    def of(cls, args: argparse.Namespace, components: Iterable[str], runner: Runner) -> "Target":
        """Returns the target that a command line names (`add_target`), after a check of all defaults.

        Raises:
            ArgumentError: An option is wrong.
            DefaultsError: A default in the site's or the user's file is wrong.
        """
        check_scheduler_args(runner, args)
        options = runner.scheduler_run_opts(args.scheduler)
        check_options(args.scheduler, options)
        for component in components:
            check_arguments(component)
        workspace = get_config("cli", "run", "workspace")
        return cls(args.scheduler, options.cfg_from_str(args.scheduler_args), runner, workspace)

    def dry_run(self, job: Job, after: list[str] | None = None) -> AppDryRunInfo:
        """Returns the request of a job that waits for those with the handles `after`, and outlives this process.

        Raises:
            InputError: The component refuses its arguments, or the scheduler its options.
        """
        try:
            cfg: dict[str, CfgVal] = {**self._cfg(job), **self._options}
            if self.scheduler == LOCAL:
                cfg["detach"] = True
            if after:
                cfg["after"] = after
            apply(scheduler=self.scheduler, cfg=cfg)
            workspace = self._workspace or (str(Path.cwd()) if way_of(cfg) else None)
            return self._runner.dryrun_component(job.component, job.words, self.scheduler, cfg=cfg, workspace=workspace)
        except (ArgumentError, SchedulerError, InvalidRunConfigException) as error:
            raise InputError(f"{job.key}: {error}") from error

    def _cfg(self, job: Job) -> dict[str, CfgVal]:
        """Returns the options of a job; texts are parsed like `-cfg`."""
        options = self._runner.scheduler_run_opts(self.scheduler)
        given = job.options.get(self.scheduler, {})
        try:
            texts = {name: value for name, value in given.items() if isinstance(value, str) and options.get(name)}
            read = {name: cast(none_throws(options.get(name)), value) for name, value in texts.items()}
            return options.cfg_from_json_repr(json.dumps({**given, **read}))
        except (InvalidRunConfigException, ValueError, TypeError, AttributeError) as error:
            raise SchedulerError(f"options.{self.scheduler}: {error}") from error


class Jobs:
    """The jobs of one record.

    Args:
        record: The record.
        runner: TorchX's runner.
    """

    def __init__(self, record: Record, runner: Runner) -> None:
        self._record = record
        self._runner = runner

    def looks(self, names: Collection[str]) -> dict[str, Look]:
        """Returns the current state of jobs, by name."""
        newest = self._record.newest(names)
        return {name: self._look(newest.get(name)) for name in names}

    def _look(self, submission: Submission | None) -> Look:
        if not submission or not submission.identity:
            return Look(submission)
        if submission.ended_as == AppState.SUCCEEDED.name:
            return Look(submission, AppState.SUCCEEDED)
        if not submission.handle:
            app_id = findable(submission.scheduler).find(submission.identity)
            if app_id is None:
                return Look(submission)
            handle = make_app_handle(submission.scheduler, SESSION, app_id)
            submission = self._record.update(submission, handle=handle)
        status = self._runner.status(submission.handle)
        if status is None:
            return Look(submission, AppState[submission.ended_as] if submission.ended_as else None)
        if is_terminal(status.state) and submission.ended_as != status.state.name:
            submission = self._record.update(submission, ended_as=status.state.name)
        return Look(submission, status.state, status)

    def submit(self, job: Job, target: Target, before: Look, inputs: str = "", after: list[str] | None = None) -> str:
        """Submits a job and returns its handle.

        Args:
            job: The job.
            target: The scheduler to submit to.
            before: The state of its last submission.
            inputs: A hash of its inputs.
            after: The handles of the jobs that it waits for.

        Raises:
            SchedulerError: The scheduler refuses it, above all because one of these jobs has failed. The note stays
                only if the job may have been submitted nonetheless.
            InputError: Somebody else submits it at the same time.
        """
        self._clear(before)
        dry_run = target.dry_run(job, after)
        submission = self._record.begin(
            Submission(
                step=job.name,
                number=before.number + 1,
                inputs=inputs,
                component=job.component,
                words=job.words,
                scheduler=target.scheduler,
                identity=target.identity(dry_run.request),
                after=after or [],
            )
        )
        try:
            handle = remember(self._runner.schedule(dry_run), dry_run)
        except MaybeSubmitted:
            raise
        except SchedulerError:
            with suppress(SchedulerError):  # if this fails, the note stays
                if findable(target.scheduler).find(submission.identity) is None:
                    self._record.retract(submission)
            raise
        self._record.update(submission, handle=handle)
        return handle

    def cancel(self, look: Look) -> None:
        """Requests that a job end, without waiting."""
        self._runner.cancel(look.handle)

    def _clear(self, look: Look) -> None:
        """Ends the remains of a job: a job that waits for a failed one, or processes whose supervisor was killed."""
        if look.is_active:
            self.cancel(look)
            self._runner.wait(look.handle, wait_interval=1)
        elif look.state == AppState.FAILED and look.submission and look.scheduler == LOCAL:
            findable(LOCAL).cancel(look.submission.identity)
