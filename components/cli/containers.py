"""Checks for schedulers of containers: workspaces that need a Docker daemon, and the pods of dry runs."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchx.cli.cmd_run import TorchXRunArgs
from torchx.runner import Runner
from torchx.runner.config import get_configs
from torchx.schedulers.api import Scheduler
from torchx.specs import AppDef, AppDryRunInfo, Workspace

from components.launch import ArgumentError
from schedulers.code.workspace import CodeWorkspace, way_of, would_be_shipped
from schedulers.contract import warn_of_ignored
from schedulers.pod_schema import check_pods

DOCKER_SECONDS = 10
# By name: to import it imports the client of Docker, which took every command of torchx 0.1 s.
BY_DOCKER = "torchx.workspace.docker_workspace"
ON_CLUSTERS = ("kubernetes", "jobset")


def without_workspace_that_cannot_be_built(runner: Runner, args: TorchXRunArgs) -> TorchXRunArgs:
    """Returns the arguments of a job, without a workspace that Docker cannot build into the image.

    TorchX takes the current directory for the workspace by default, and calls Docker even in a dry run.

    Raises:
        ArgumentError: The workspace was requested by a flag.
    """
    scheduler = runner._scheduler(args.scheduler)
    missing = _why_not_shipped(scheduler, args) if args.workspace else ""
    if not missing:
        return args
    if args.workspace != str(Path.cwd()) or get_configs("cli", "run").get("workspace"):
        allowed = f"a directory that can come into the image; {missing}; --workspace '' takes the image as it is"
        raise ArgumentError("--workspace", args.workspace, allowed)
    _say(f"{args.workspace} is not built into the image, which is taken as it is: {missing}")
    return replace(args, workspace="")


def docker_problem() -> str:
    """Returns why no Docker daemon answers; empty if one does."""
    try:
        import docker

        docker.from_env(timeout=DOCKER_SECONDS).ping()
    except Exception as error:  # by docker, requests, urllib3 or the operating system
        return docker_line(error) or f"Docker: {error}"
    return ""


def docker_line(error: Exception) -> str:
    """Returns an error of the Docker client in one line; empty for any other."""
    if not type(error).__module__.startswith("docker."):
        return ""
    if explanation := getattr(error, "explanation", None):  # the daemon has answered
        return f"Docker: {' '.join(str(explanation).split())}"
    return f"Docker: {' '.join(str(error).split())}; is its daemon running? DOCKER_HOST names its socket"


def check_requests(runner: Runner, scheduler: str) -> None:
    """Makes all dry runs check the pods of their requests, and print the schema of the check and what would be sent."""
    dryrun: Callable[..., AppDryRunInfo] = runner.dryrun

    def checked(*words: Any, **options: Any) -> AppDryRunInfo:
        info = dryrun(*words, **options)
        _say(check_pods(info.request.resource))
        for line in would_be_shipped(info.request):
            _say(line)
        return info

    if scheduler in ON_CLUSTERS:
        runner.dryrun = checked


def warn_of_what_docker_ignores(runner: Runner, scheduler: str) -> None:
    """Makes requests to TorchX's own `local_docker` warn of fields that it ignores, such as ports."""
    dryrun: Callable[..., AppDryRunInfo] = runner.dryrun

    def warned(app: AppDef, *words: Any, **options: Any) -> AppDryRunInfo:
        warn_of_ignored(app, scheduler, "ports", "capabilities")
        return dryrun(app, *words, **options)

    if scheduler == "local_docker":
        runner.dryrun = warned


def _why_not_shipped(scheduler: Scheduler, args: TorchXRunArgs) -> str:
    """Returns why a workspace cannot reach the containers of a job; empty if it can, or if there are none."""
    if isinstance(scheduler, CodeWorkspace):
        way = way_of(args.scheduler_cfg)
        if way is None:
            return "neither -cfg image_repo nor -cfg code says how it would reach the pods"
        if not scheduler.needs_build(Workspace.from_str(args.workspace), way):
            return ""
    return docker_problem() if any(kind.__module__ == BY_DOCKER for kind in type(scheduler).__mro__) else ""


def _say(line: str) -> None:
    print(f"torchx run: {line}", file=sys.stderr, flush=True)
