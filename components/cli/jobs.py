"""The commands for submitted jobs: `log`, `status`, `list`, `cancel`, `delete` and `describe`."""

import argparse
import io
import json
import sys
import threading
import time
from contextlib import redirect_stdout
from functools import cache

from tabulate import tabulate
from torchx.cli.cmd_base import AppHandleSubCommand, SubCommand
from torchx.cli.cmd_cancel import CmdCancel
from torchx.cli.cmd_delete import CmdDelete
from torchx.cli.cmd_describe import CmdDescribe
from torchx.cli.cmd_list import HANDLE_HEADER, NAME_HEADER, STATUS_HEADER, CmdList
from torchx.cli.cmd_log import CmdLog, validate
from torchx.cli.cmd_status import CmdStatus
from torchx.runner import Runner, get_runner
from torchx.runner.config import apply
from torchx.schedulers import get_scheduler_factories
from torchx.schedulers.api import ListAppResponse, Scheduler
from torchx.specs import NONE, AppDef, AppState, AppStatus, parse_app_handle
from torchx.specs.api import is_started

from components.cli.base import check_scheduler_args, default_to_local, errors_in_one_line, require_job
from components.cli.defaults import check_options, check_sections
from components.cli.ending import with_plain_error
from schedulers.errors import SchedulerError
from trainer.core.progress import TrainingProgress

POLL_SECONDS = 1
HEADERS = [HANDLE_HEADER, NAME_HEADER, STATUS_HEADER]
DETAILS = ["waits", "progress"]  # columns that are shown if any job has something there


class Log(CmdLog):
    """TorchX's own `log`, with `-f` as in `tail`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds `-f`, another name of `-t`."""
        super().add_arguments(subparser)
        subparser.add_argument("-f", "--follow", dest="tail", action="store_true", help="The same as --tail")

    def run(self, args: argparse.Namespace) -> None:
        """Prints the logs; explains why a job has not started, and waits for it only if the logs are followed."""
        # TorchX raises the error of a thread again in this thread, where it is printed once.
        threading.excepthook = lambda _: None
        validate(args.identifier)
        *words, role, replicas = (*args.identifier.split("/"), None, None)[:6]
        handle = "/".join(map(str, words))
        with errors_in_one_line("torchx log"):
            with get_runner() as runner:
                status = require_job(runner, handle, "torchx log")
                wanted = [args.identifier]
                if not role:
                    _require_replicas(runner.describe(handle), handle)
                if not replicas and not is_started(status.state):
                    _say_state("torchx log", handle, status)
                    if args.tail and not status.num_restarts:
                        _wait_for_start(runner, handle, status)
                    else:  # what earlier attempts have written
                        wanted = _replicas(runner.describe(handle), handle, role)
            for args.identifier in wanted:
                super().run(args)


def _require_replicas(app: AppDef | None, handle: str) -> None:
    if not app or not app.roles:
        raise SchedulerError(
            f"{handle} has left nothing that can be read here: it was not submitted by torchx, belongs to another user,"
            " or its files are gone"
        )


def _replicas(app: AppDef | None, handle: str, role: str | None) -> list[str]:
    """Returns the identifiers of all replicas, by role: given these, TorchX does not wait until the job has started."""
    roles = [each for each in app.roles if role in (None, each.name)] if app else []
    return ["/".join([handle, each.name, ",".join(map(str, range(each.num_replicas)))]) for each in roles]


def _wait_for_start(runner: Runner, handle: str, status: AppStatus) -> None:
    """Waits until a job has started, and prints each new reason for the wait; TorchX itself waits silently."""
    told = status.msg
    while not is_started(status.state):
        time.sleep(POLL_SECONDS)
        status = require_job(runner, handle, "torchx log")
        if status.msg != told and not is_started(status.state):
            _say_state("torchx log", handle, status)
            told = status.msg


def _say_state(program: str, handle: str, status: AppStatus) -> None:
    reason = f": {status.msg}" if status.msg not in ("", NONE) else ""
    print(f"{program}: {handle} is {status.state.name}{reason}", file=sys.stderr, flush=True)


class _List(CmdList):
    """TorchX's own `list`, of local jobs by default."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds TorchX's own arguments."""
        with errors_in_one_line():
            super().add_arguments(subparser)
            default_to_local(subparser, "list")

    def run(self, args: argparse.Namespace) -> None:
        """Prints the jobs of a scheduler; why one has not started, and how far one is that runs."""
        check_sections(get_scheduler_factories())
        with get_runner() as runner:
            check_scheduler_args(runner, args)
            options = runner.scheduler_run_opts(args.scheduler)
            check_options(args.scheduler, options)
            cfg = options.cfg_from_str(args.scheduler_args or "")
            apply(scheduler=args.scheduler, cfg=cfg)
            listed = runner.list(args.scheduler, cfg or None)
            rows = [[app.app_handle, app.name, app.state.name, *_details(runner, app)] for app in listed]
        always = len(HEADERS)
        shown = [*range(always), *(n for n in range(always, always + len(DETAILS)) if any(row[n] for row in rows))]
        print(tabulate([[row[n] for n in shown] for row in rows], [[*HEADERS, *DETAILS][n] for n in shown]))


def _details(runner: Runner, app: ListAppResponse) -> list[str]:
    """Returns what a job waits for, and how far it is; TorchX lists states only."""
    waits = runner.status(app.app_handle) if app.state == AppState.PENDING else None
    training = progress(app.app_handle) if app.state == AppState.RUNNING else None
    return [waits.msg if waits and waits.msg != NONE else "", training.short() if training else ""]


def progress(handle: str) -> TrainingProgress | None:
    """Returns how far a job is that runs; None if it, or its scheduler, does not say."""
    backend, session, app_id = parse_app_handle(handle)
    say = getattr(scheduler_of(backend, session), "progress", None)
    return say(app_id) if say else None


@cache
def scheduler_of(backend: str, session: str) -> Scheduler:
    """Returns a scheduler, of the names in a handle."""
    return get_scheduler_factories()[backend](session)


class _Cancel(CmdCancel):
    """TorchX's own `cancel`, which refuses a job unknown to its scheduler, and prints what happens to the job."""

    def run_with_runner(self, args: argparse.Namespace, runner: Runner) -> None:
        """Cancels the job, which may save first, and still runs meanwhile."""
        backend, session, app_id = parse_app_handle(args.app_handle)
        if check := getattr(scheduler_of(backend, session), "check_known", None):
            check(app_id)
        super().run_with_runner(args, runner)
        if status := runner.status(args.app_handle):
            _say_state("torchx cancel", args.app_handle, status)


class _Status(CmdStatus):
    """TorchX's own `status`, with the first error in plain text, and in JSON the progress of a job that runs."""

    def print_status(self, args: argparse.Namespace, app_status: AppStatus | None) -> None:
        """Prints the status."""
        if app_status and not args.json:
            super().print_status(args, with_plain_error(app_status))
            return
        training = progress(args.app_handle) if app_status and app_status.state == AppState.RUNNING else None
        with redirect_stdout(io.StringIO()) as printed:
            super().print_status(args, app_status)
        known = {"progress": training.fields()} if training else {}
        print(json.dumps(json.loads(printed.getvalue()) | known))


def _with_errors_in_one_line(name: str, command: type[SubCommand]) -> type[SubCommand]:
    class Command(command):
        """TorchX's own command, with one line instead of a traceback if the scheduler fails."""

        def run(self, args: argparse.Namespace) -> None:
            """Runs the command."""
            with errors_in_one_line(f"torchx {name}"):
                super().run(args)

    return Command


def _for_known_jobs(name: str, command: type[AppHandleSubCommand]) -> type[SubCommand]:
    class Command(command):
        """TorchX's own command, which refuses a job that does not exist."""

        def run_with_runner(self, args: argparse.Namespace, runner: Runner) -> None:
            """Runs the command."""
            require_job(runner, args.app_handle, f"torchx {name}")
            super().run_with_runner(args, runner)

    return _with_errors_in_one_line(name, Command)


Status = _with_errors_in_one_line("status", _Status)
List = _with_errors_in_one_line("list", _List)
Cancel = _for_known_jobs("cancel", _Cancel)
Delete = _for_known_jobs("delete", CmdDelete)
Describe = _with_errors_in_one_line("describe", CmdDescribe)
