"""`torchx run` and `torchx log` for people: the next command to type, and one line for what cannot be done."""

import argparse
import json
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TextIO

from torchx.cli.cmd_log import CmdLog, validate
from torchx.cli.cmd_run import CmdRun, TorchXRunArgs, _run_result_json
from torchx.runner import Runner, get_runner
from torchx.runner.config import get_configs
from torchx.schedulers.local_scheduler import SignalException
from torchx.specs import InvalidRunConfigException

from components._launch import ArgumentError
from schedulers.errors import SchedulerError


class Run(CmdRun):
    """TorchX's own `run`, with the next commands after the app handle, and detached local jobs."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds TorchX's own, with this machine as the default scheduler."""
        super().add_arguments(subparser)
        stay_here(subparser, "run")

    def run(self, args: argparse.Namespace) -> None:
        """Runs the command; the handle alone goes to stdout, as ever."""
        with for_people("run"), redirect_stdout(_HandleWatcher(sys.stdout)):
            super().run(args)

    def _run_from_cli_args(self, runner: Runner, args: argparse.Namespace) -> None:
        try:
            runner.scheduler_run_opts(args.scheduler).cfg_from_str(args.scheduler_args or "")
        except (ValueError, InvalidRunConfigException) as error:
            allowed = f"KEY=VALUE,... as `torchx runopts {args.scheduler}` lists them ({error})"
            raise ArgumentError("-cfg", args.scheduler_args, allowed) from error
        super()._run_from_cli_args(runner, args)

    def _submit(
        self,
        runner: Runner,
        args: TorchXRunArgs,
        component_args: dict[str, Any] | list[str],
        json_output: bool,
    ) -> None:
        # TorchX would wait for every scheduler whose name begins with "local".
        if not args.scheduler_cfg.get("detach") or args.wait or args.log:
            super()._submit(runner, args, component_args, json_output)
            return
        handle = runner.run_component(
            args.component_name,
            component_args,
            args.scheduler,
            workspace=args.workspace,
            cfg=args.scheduler_cfg,
            parent_run_id=args.parent_run_id,
        )
        print(json.dumps(_run_result_json(handle, runner.status(handle))) if json_output else handle)


class Log(CmdLog):
    """TorchX's own `log`, with `-f` for those who know it from `tail`."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds `-f`, which is `-t` by another name."""
        super().add_arguments(subparser)
        subparser.add_argument("-f", "--follow", dest="tail", action="store_true", help="The same as --tail")

    def run(self, args: argparse.Namespace) -> None:
        """Prints the logs; what goes wrong in one of its threads is raised here once more, and said once."""
        threading.excepthook = lambda _: None
        validate(args.identifier)
        handle = "/".join(args.identifier.split("/")[:4])
        with for_people("log"):
            with get_runner() as runner:
                if runner.status(handle) is None:
                    print(f"torchx log: error: there is no job {handle}", file=sys.stderr)
                    sys.exit(1)
            super().run(args)


def stay_here(subparser: argparse.ArgumentParser, command: str) -> None:
    """Makes this machine the default where `.torchxconfig` names no scheduler; TorchX takes the first by name."""
    if "scheduler" not in get_configs("cli", command):
        subparser.set_defaults(scheduler="local_cwd")


@contextmanager
def for_people(command: str) -> Iterator[None]:
    """Ends the program with one line for wrong input, and without a word when it is interrupted."""
    try:
        yield
    except (ArgumentError, SchedulerError) as error:
        print(f"torchx {command}: error: {error}", file=sys.stderr)
        sys.exit(2)
    except SignalException as stop:
        sys.exit(128 + stop.sigval)
    except KeyboardInterrupt:
        sys.exit(130)


class _HandleWatcher:
    """Passes output on, and follows the line that is an app handle with the next commands on stderr."""

    def __init__(self, stdout: TextIO) -> None:
        self._stdout = stdout
        self._line = ""

    def write(self, text: str) -> int:
        self._stdout.write(text)
        self._line += text
        if self._line.endswith("\n"):
            handle, self._line = self._line.strip(), ""
            if re.fullmatch(r"[\w-]+://[^/\s]*/\S+", handle):
                self._stdout.flush()
                print(next_commands(handle), file=sys.stderr, flush=True)
        return len(text)

    def flush(self) -> None:
        self._stdout.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stdout, name)


def next_commands(handle: str) -> str:
    """What somebody who has just submitted `handle` can do now, in any shell."""
    return "\n".join(["next:", *(f"  torchx {command} {handle}" for command in ("status", "log -f", "cancel"))])
