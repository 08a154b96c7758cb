"""The flag `--workspace` of `torchx run`: says where it changes nothing, as TorchX ignores it there without a word."""

import sys
from pathlib import Path

from torchx.cli.cmd_run import TorchXRunArgs
from torchx.runner import Runner
from torchx.specs import Workspace
from torchx.workspace import WorkspaceMixin

IN_PLACE = ("local_cwd", "slurm")  # whose jobs run in the current directory
COPYING_OPTIONS = ("job_dir", "host")  # of Slurm


def tell_ignored_workspace(runner: Runner, args: TorchXRunArgs) -> None:
    """Prints a line if a job does not run in the workspace that was asked for."""
    if not args.workspace or _is_here(args.workspace):
        return
    scheduler = runner._scheduler(args.scheduler)
    if not isinstance(scheduler, WorkspaceMixin):
        why = f"{args.scheduler} copies no workspace"
    elif args.scheduler == "slurm" and not any(args.scheduler_cfg.get(option) for option in COPYING_OPTIONS):
        why = "slurm copies a workspace only with -cfg job_dir=DIRECTORY"
    else:
        return
    instead = "the job runs in the current directory" if args.scheduler in IN_PLACE else "the image is taken as it is"
    print(f"torchx run: --workspace {args.workspace} is ignored: {why}; {instead}", file=sys.stderr, flush=True)


def _is_here(workspace: str) -> bool:
    """Returns whether a workspace is the current directory, which it is by default."""
    return {Path(source).resolve() for source in Workspace.from_str(workspace).projects} == {Path.cwd().resolve()}
