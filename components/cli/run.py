"""The command `torchx run`: prints the next commands after the handle, and detaches from local jobs on request."""

import argparse
import json
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from typing import Any, TextIO

from torchx.cli.cmd_run import CmdRun, TorchXRunArgs, _run_result_json
from torchx.runner import Runner
from torchx.schedulers import get_scheduler_factories
from torchx.specs import NONE, AppDef, AppDryRunInfo, AppState, AppStatus, Role

from components.cli.base import check_scheduler_args, default_to_local, errors_in_one_line, require_options
from components.cli.containers import (
    check_requests,
    warn_of_what_docker_ignores,
    without_workspace_that_cannot_be_built,
)
from components.cli.defaults import check_arguments, check_options, check_sections, with_file
from components.cli.ending import Ending
from components.cli.words import complete_words, flags_of, parse_all
from components.cli.workspaces import tell_ignored_workspace
from components.launch import ArgumentError, check_seeds
from schedulers.errors import SchedulerError
from schedulers.job_records import remember
from schedulers.queue_room import when_there_is_room
from trainer.core.outcome import WRONG_INPUT, WRONG_INPUT_WORDS, is_wrong_input
from trainer.core.secrets import without_secrets

SEEDS = "--seeds"
RUN_ARRAYS = ("slurm",)
# Names of variables whose values a dry run hides.
CREDENTIAL = re.compile("token|secret|passw|credential|signature|auth|key", re.IGNORECASE)


class Run(CmdRun):
    """TorchX's own `run`, with the next commands after the app handle, and detached local jobs."""

    _wrong_input = False  # whether a job that was waited for has ended by wrong input

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds TorchX's own arguments, with `local_cwd` as the default scheduler."""
        with errors_in_one_line():
            super().add_arguments(subparser)
            default_to_local(subparser, "run")
        self._flags = flags_of(subparser)
        # pyrefly: ignore[bad-assignment]
        subparser.parse_known_args = partial(parse_all, subparser.parse_known_args)

    def run(self, args: argparse.Namespace) -> None:
        """Runs the command; only the handle goes to stdout, as in TorchX."""
        with errors_in_one_line("torchx run"), redirect_stdout(_HandleWatcher(sys.stdout)):
            check_sections(get_scheduler_factories())
            super().run(args)

    def _run_from_cli_args(self, runner: Runner, args: argparse.Namespace) -> None:
        check_scheduler_args(runner, args)
        super()._run_from_cli_args(runner, args)

    def _run_inner(self, runner: Runner, args: TorchXRunArgs, json_output: bool) -> None:
        check_options(args.scheduler, runner.scheduler_run_opts(args.scheduler))
        check_arguments(args.component_name)
        args = replace(
            args, component_args_str=complete_words(args.component_name, args.component_args_str, self._flags)
        )
        words = (*args.scheduler_cfg, *args.component_args, *args.component_args_str)
        flags = {word.lstrip("-").partition("=")[0] for word in words}
        require_options(runner, args.scheduler, args.scheduler_cfg)
        tell_ignored_workspace(runner, args)
        args = without_workspace_that_cannot_be_built(runner, args)
        warn_of_what_docker_ignores(runner, args.scheduler)
        codes = []
        _wait_for_room(runner)
        for one in [args] if args.scheduler in RUN_ARRAYS else one_for_each_seed(args):
            try:
                super()._run_inner(runner, one, json_output)
            except (ArgumentError, SchedulerError) as error:
                raise with_file(error, args.scheduler, args.component_name, flags) from error
            except SystemExit as ended:  # the other seeds run even if the run of one seed has failed
                codes.append(WRONG_INPUT if self._wrong_input else ended.code)
        if codes:
            raise SystemExit(codes[0])

    def _dryrun(
        self,
        runner: Runner,
        args: TorchXRunArgs,
        component_args: dict[str, Any] | list[str],
        json_output: bool,
    ) -> None:
        hide_credentials(runner)
        check_requests(runner, args.scheduler)
        super()._dryrun(runner, args, component_args, json_output)

    def _wait(self, runner: Runner, app_handle: str, log: bool, tee_logs: bool = False) -> AppStatus:
        status = super()._wait(runner, app_handle, log, tee_logs)
        self._wrong_input = status.state == AppState.FAILED and is_wrong_input(status.msg)
        if self._wrong_input and log:
            status = replace(status, msg=f"{WRONG_INPUT_WORDS}, see above", roles=[], structured_error_msg=NONE)
        return Ending(**vars(status))

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
    """A wrapper of stdout that prints the next commands to stderr after a line with an app handle."""

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


def one_for_each_seed(args: TorchXRunArgs) -> list[TorchXRunArgs]:
    """Returns the arguments of a job for each seed of `--seeds`.

    Raises:
        ArgumentError: The seeds are malformed.
    """
    words = args.component_args_str
    own = words[: words.index("--")] if "--" in words else words
    for place, word in enumerate(own):
        flag, equals, value = word.partition("=")
        if flag == SEEDS and (equals or place + 1 < len(own)):
            before, after = words[:place], words[place + (1 if equals else 2) :]
            seeds = (value or own[place + 1]).split(",")
            check_seeds(seeds)
            return [replace(args, component_args_str=[*before, SEEDS, seed, *after]) for seed in seeds]
    return [args]


def _wait_for_room(runner: Runner) -> None:
    """Makes a runner submit each job as soon as there is room for it, and record it for `torchx tracker`."""
    schedule = runner.schedule

    def say(line: str) -> None:
        print(f"torchx run: {line}", file=sys.stderr, flush=True)

    runner.schedule = lambda dryrun_info: remember(when_there_is_room(lambda: schedule(dryrun_info), say), dryrun_info)


def hide_credentials(runner: Runner) -> None:
    """Removes credentials from the requests of all dry runs, which can then be shown but no longer submitted."""
    # Hidden before the scheduler renders the app, so that no form of output shows them.
    dryrun: Callable[..., AppDryRunInfo] = runner.dryrun
    runner.dryrun = lambda app, *rest, **options: dryrun(without_credentials(app), *rest, **options)


def without_credentials(app: AppDef) -> AppDef:
    """Returns an app with `***` for the values of variables named like a credential, and for secrets in URLs."""
    return replace(app, roles=[_hidden(role) for role in app.roles])


def _hidden(role: Role) -> Role:
    env = {name: "***" if CREDENTIAL.search(name) else without_secrets(value) for name, value in role.env.items()}
    return replace(role, env=env, args=[without_secrets(argument) for argument in role.args])
