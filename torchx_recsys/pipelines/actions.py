"""The actions of the command `torchx pipeline`."""

import argparse
import re
import shlex
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from tabulate import tabulate
from torchx.runner import Runner, get_runner
from torchx.runner.config import load_sections
from torchx.schedulers import get_scheduler_factories
from torchx.specs import NONE, AppState

from components.cli.defaults import check_sections
from components.cli.ending import first_error
from components.cli.jobs import Log
from components.cli.run import hide_credentials
from schedulers.errors import SchedulerError
from schedulers.queue_room import when_there_is_room
from torchx_recsys.pipelines.file import Pipeline, read_pipeline
from torchx_recsys.pipelines.jobs import Jobs, Look, Target
from torchx_recsys.pipelines.record import Record
from torchx_recsys.pipelines.tasks import Task, tasks_of
from trainer.core.errors import InputError, nearest
from trainer.core.outcome import FAILED

POLL_SECONDS = 1


def run(args: argparse.Namespace) -> None:
    """Submits the steps that need to run, or shows them in a dry run."""
    check_sections(get_scheduler_factories())
    defaults: dict[str, Any] = load_sections(prefix="component")
    pipeline = _read(args, defaults)
    for flag, name in (("--from", args.start), ("--only", args.only)):
        if name is not None:
            _check_step(flag, name, pipeline)
    if args.start and args.only:
        raise InputError("--from and --only exclude each other; leave one out")
    with get_runner(component_defaults=defaults) as runner:
        target = Target.of(args, [step.component for step in pipeline.steps.values()], runner)
        if args.dryrun:
            _print_dry_runs(target, pipeline, runner)
            return
        for step in pipeline.steps.values():  # checks the whole file before the first step is submitted
            target.dry_run(step)
        again = pipeline.with_followers(args.start) if args.start else {args.only} - {None}
        record = _record(pipeline)
        jobs = Jobs(record, runner)

        def looked_at() -> tuple[dict[str, Look], dict[str, Task]]:
            looks = jobs.looks(pipeline.steps)
            return looks, tasks_of(pipeline, looks, args.scheduler, again, args.only)

        looked_at()  # wrong flags are refused before anything is written
        with record.alone():
            refused = _submit_all(jobs, target, *looked_at())
        _say_what_is_next(args)
        if args.wait:
            refused |= not _wait_for_all(pipeline, jobs)
        if refused:
            sys.exit(FAILED)


def _record(pipeline: Pipeline) -> Record:
    return Record(pipeline.out, "pipeline", "pipeline")


def _submit_all(jobs: Jobs, target: Target, looks: Mapping[str, Look], tasks: Mapping[str, Task]) -> bool:
    """Submits steps and prints a line for each step; returns whether one was refused."""
    handles = {name: look.handle for name, look in looks.items() if look.is_active}
    width = max(map(len, looks))
    lost: list[str] = []

    def say(name: str, line: str) -> None:
        print(f"{name:{width}}  {line}", flush=True)

    for name, look in looks.items():
        task = tasks.get(name)
        if task is None:
            line = f"kept       {look.handle} ({look.state.name})" if look.state else "left out"
        elif missing := [before for before in task.step.after if before in lost]:
            lost.append(name)
            line = f"refused    needs {', '.join(missing)}"
        else:
            after = [handles[before] for before in task.step.after if before in handles]
            submit = partial(jobs.submit, task.step, target, look, task.inputs, after)
            try:
                handles[name] = when_there_is_room(submit, partial(say, name))
                line = f"submitted  {handles[name]}"
            except SchedulerError as error:
                lost.append(name)
                line = f"refused    {_with_names(str(error), handles)}"
        say(name, line)
    return bool(lost)


def _wait_for_all(pipeline: Pipeline, jobs: Jobs) -> bool:
    """Waits until all steps have ended and prints changes of their states; returns whether all have succeeded."""
    width = max(map(len, pipeline.steps))
    shown: dict[str, AppState | None] = {}
    while True:
        looks = jobs.looks(pipeline.steps)
        for name, look in looks.items():
            if look.state and look.state != shown.get(name):
                shown[name] = look.state
                print(f"{time.strftime('%H:%M:%S')}  {name:{width}}  {look.state.name}", flush=True)
        if not any(look.is_active for look in looks.values()):
            break
        time.sleep(POLL_SECONDS)
    print(_table(looks))
    return all(look.state == AppState.SUCCEEDED for look in looks.values())


def status(args: argparse.Namespace) -> None:
    """Shows the steps and their jobs."""
    with get_runner() as runner:
        pipeline = _read(args)
        print(_table(Jobs(_record(pipeline), runner).looks(pipeline.steps)))


def log(args: argparse.Namespace) -> None:
    """Prints logs of steps."""
    pipeline = _read(args)
    if args.step is not None:
        _check_step("STEP", args.step, pipeline)
    with get_runner() as runner:
        looks = Jobs(_record(pipeline), runner).looks(pipeline.steps)
    wanted = {name: look for name, look in looks.items() if look.handle and args.step in (None, name)}
    if not wanted:
        raise InputError(f"{args.step or 'no step'} was submitted; `torchx pipeline run {args.file}` does so")
    command = Log()
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    for name, look in wanted.items():
        if args.step is None:
            print(f"== {name}", flush=True)
        command.run(parser.parse_args([look.handle, *(["-f"] if args.follow else [])]))


def cancel(args: argparse.Namespace) -> None:
    """Cancels the steps that have not ended."""
    with get_runner() as runner:
        pipeline = _read(args)
        jobs = Jobs(_record(pipeline), runner)
        active = {name: look for name, look in jobs.looks(pipeline.steps).items() if look.is_active}
        for name, look in reversed(active.items()):
            jobs.cancel(look)
            print(f"cancelled {name}, {look.handle}", flush=True)
        if not active:
            print("no step has a job that has not ended")


def _read(args: argparse.Namespace, defaults: Mapping[str, Mapping[str, str]] | None = None) -> Pipeline:
    changes = {}
    for word in args.set:
        name, equals, value = word.partition("=")
        if not equals:
            raise InputError(f"--set {word}: must be KEY=VALUE")
        changes[name] = value
    return read_pipeline(args.file, changes, load_sections(prefix="component") if defaults is None else defaults)


def _check_step(flag: str, name: str, pipeline: Pipeline) -> None:
    if name not in pipeline.steps:
        raise InputError(f"{flag} {name}: unknown step '{name}'{nearest(name, pipeline.steps)}")


def _print_dry_runs(target: Target, pipeline: Pipeline, runner: Runner) -> None:
    hide_credentials(runner)
    requests = {name: target.dry_run(step) for name, step in pipeline.steps.items()}
    print("\n".join(pipeline.drawing()))
    for name, request in requests.items():
        step = pipeline.steps[name]
        after = f", after {', '.join(step.after)}" if step.after else ""
        print(f"\n=== {name}: {step.component}{after} ===\n{request}")


def _say_what_is_next(args: argparse.Namespace) -> None:
    words = " ".join(
        shlex.quote(word) for word in [args.file, *(each for pair in args.set for each in ("--set", pair))]
    )
    lines = (f"  torchx pipeline {command}" for command in (f"status {words}", f"log {words} -f", f"cancel {words}"))
    print("\n".join(["next:", *lines]), file=sys.stderr, flush=True)


def _table(looks: Mapping[str, Look]) -> str:
    """Returns a table of steps, and below it the errors of failed steps."""
    handles = {name: look.handle for name, look in looks.items() if look.handle}
    rows, errors = [], []
    for name, look in looks.items():
        state = look.state.name if look.state else "GONE" if look.handle else "NOT SUBMITTED"
        message = look.status.msg if look.status and look.status.msg != NONE else ""
        rows.append([name, state, look.handle, _with_names(message, handles)])
        if look.status and (error := first_error(look.status)):
            errors.append(f"{name}: {error}")
    return "\n".join([tabulate(rows, ["step", "state", "job", ""], disable_numparse=True), *errors])


def _with_names(text: str, handles: Mapping[str, str]) -> str:
    """Returns a text with handles of steps replaced by their names."""
    for name, handle in handles.items():
        text = re.sub(rf"{re.escape(handle)}(?![\w@-])", name, text)
    return text
