"""The command `torchx run`: prints the next commands after the handle, and detaches from local jobs on request."""

import argparse
import json
import re
import sys
from contextlib import redirect_stdout
from typing import Any, TextIO

from torchx.cli.cmd_run import CmdRun, TorchXRunArgs, _run_result_json
from torchx.runner import Runner
from torchx.specs import InvalidRunConfigException

from components.cli.base import default_to_local, errors_in_one_line
from components.launch import ArgumentError


class Run(CmdRun):
    """TorchX's own `run`, with the next commands after the app handle, and detached local jobs."""

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds TorchX's own arguments, with `local_cwd` as the default scheduler."""
        super().add_arguments(subparser)
        default_to_local(subparser, "run")

    def run(self, args: argparse.Namespace) -> None:
        """Runs the command; only the handle goes to stdout, as TorchX has it."""
        with errors_in_one_line("run"), redirect_stdout(_HandleWatcher(sys.stdout)):
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


class _HandleWatcher:
    """A stdout that passes text on, and prints the next commands to stderr after a line with an app handle."""

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
    """Returns the commands for a job that has just been submitted, which work in any shell."""
    return "\n".join(["next:", *(f"  torchx {command} {handle}" for command in ("status", "log -f", "cancel"))])
