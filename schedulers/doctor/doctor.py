"""The command `torchx doctor`, which checks what jobs need and names a remedy for what is missing."""

import argparse
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tabulate import tabulate
from torchx.cli.cmd_base import SubCommand
from torchx.runner.config import apply
from torchx.specs import CfgVal

from schedulers.doctor import clusters, hosts, machine
from schedulers.doctor.diagnosis import Diagnosis, Level

COLORS = {Level.OK: "\033[32m", Level.NOTE: "\033[33m", Level.ABSENT: "\033[2m", Level.WRONG: "\033[31m"}
PLAIN = "\033[0m"
SCHEDULERS = ("local_cwd", "slurm", "kubernetes", "jobset")


class Doctor(SubCommand):
    """Checks this machine and the clusters that it reaches; ends with exit code 1 if a finding is wrong.

    Without options, Slurm and Kubernetes are optional. An option makes the scheduler or path that it names required.
    """

    def add_arguments(self, subparser: argparse.ArgumentParser) -> None:
        """Adds the options."""
        subparser.add_argument("-s", "--scheduler", choices=SCHEDULERS, help="A scheduler that has to work from here")
        subparser.add_argument(
            "--host", help="A login node to check over SSH; host in [slurm] of .torchxconfig if unset"
        )
        subparser.add_argument("--venv", help="The virtual environment of its jobs, on the host; venv there if unset")
        subparser.add_argument("--out", help="A run directory that has to be writable, a path or an fsspec URL")
        subparser.add_argument("--storage", help="A data set that has to be readable, a path or an fsspec URL")

    def run(self, args: argparse.Namespace) -> None:
        """Prints a table with a line for each check."""
        defaults: dict[str, CfgVal] = {}
        apply("slurm", defaults)
        host, venv = (str(each) if each else None for each in (defaults.get("host"), defaults.get("venv")))
        findings = examine(args.scheduler, args.out, args.storage, args.host or host, args.venv or venv)
        print(render(findings, color=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
        if any(finding.level is Level.WRONG for finding in findings):
            sys.exit(1)


def examine(
    scheduler: str | None, out: str | None, storage: str | None, host: str | None, venv: str | None
) -> list[Diagnosis]:
    """Runs all checks at the same time; each has a time limit of its own."""
    checks: list[Callable[[], list[Diagnosis]]] = [
        machine.python,
        machine.torchx,
        machine.plugins,
        machine.torch,
        partial(hosts.slurm_over_ssh, host, venv) if host else partial(clusters.slurm, required=scheduler == "slurm"),
        partial(clusters.kubernetes, required=scheduler if scheduler in ("kubernetes", "jobset") else None),
    ]
    checks += [partial(machine.storage, flag, url) for flag, url in (("--out", out), ("--storage", storage)) if url]
    with ThreadPoolExecutor(len(checks)) as pool:
        return [finding for found in pool.map(lambda check: check(), checks) for finding in found]


def render(findings: list[Diagnosis], color: bool) -> str:
    """Returns the table, aligned for a terminal."""
    levels = {level: f"{paint}{level.value}{PLAIN}" if color else level.value for level, paint in COLORS.items()}
    rows = [[levels[each.level], each.check, each.found, each.remedy] for each in findings]
    return tabulate(rows, ["", "check", "found", "what to do"], maxcolwidths=[None, None, 60, 60])
