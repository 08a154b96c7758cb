"""Checks of clusters."""

import json
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from schedulers.contract import NO_PROGRAM
from schedulers.doctor.diagnosis import Diagnosis, Level, absent, answer, last_line, probe, troubled
from schedulers.jobset.restarts import OLDEST_JOBSET

SLURM_SECONDS = 15
KUBERNETES_SECONDS = 30

# The API group of each project, the schedulers that need it, and its page on how to install it.
KUBERNETES_APIS = {
    "JobSet": ("jobset.x-k8s.io", ("jobset",), "https://jobset.sigs.k8s.io/docs/installation/"),
    "Kueue": ("kueue.x-k8s.io", (), "https://kueue.sigs.k8s.io/docs/installation/"),
    "Volcano": ("batch.volcano.sh", ("kubernetes",), "https://volcano.sh/en/docs/installation/"),
}


Ask = Callable[[list[str]], CompletedProcess[str]]
"""Runs a command of Slurm."""


def slurm(required: bool) -> list[Diagnosis]:
    """Checks Slurm's commands, its controller, and its accounting."""
    remedy = "submit from a login node, put Slurm's commands on PATH, or name a login node with --host"
    return examine_slurm(lambda command: answer(command, SLURM_SECONDS), required, remedy)


def examine_slurm(ask: Ask, required: bool, remedy: str) -> list[Diagnosis]:
    """Checks Slurm wherever its commands are run.

    Args:
        ask: Runs a command.
        required: Whether Slurm has to work.
        remedy: What to do if its commands are not there.
    """
    found = ask(["sinfo", "--version"])
    if found.returncode == NO_PROGRAM:
        return [absent("Slurm", "no sinfo on PATH", required, remedy)]
    version = found.stdout.strip() or "Slurm"
    ping = ask(["scontrol", "ping"])
    if " UP" not in ping.stdout:
        remedy = "start slurmctld, or see `scontrol ping` and SLURM_CONF"
        return [troubled("Slurm", f"{version}; {last_line(ping.stdout + ping.stderr)}", required, remedy)]
    return [Diagnosis("Slurm", Level.OK, version), _accounting(ask, required)]


def _accounting(ask: Ask, required: bool) -> Diagnosis:
    shown = ask(["scontrol", "show", "config"]).stdout
    kind = re.search(r"^AccountingStorageType\s*=\s*(\S+)", shown, re.MULTILINE)
    if not kind or kind[1].endswith("none") or kind[1] == "(null)":
        age = re.search(r"^MinJobAge\s*=\s*(.+)$", shown, re.MULTILINE)
        found = f"none: Slurm forgets a job {age[1].strip() if age else 'some time'} after its end"
        return Diagnosis("Slurm accounting", Level.NOTE, found, "to keep states longer, run slurmdbd")
    done = ask(["sacct", "--noheader", "--allocations", "--starttime", "now"])
    if done.returncode:
        return troubled("Slurm accounting", f"{kind[1]}; {last_line(done.stderr)}", required, "start slurmdbd")
    return Diagnosis("Slurm accounting", Level.OK, kind[1])


def kubernetes(required: str | None) -> list[Diagnosis]:
    """Checks the cluster of the current context for a required scheduler, if there is one."""
    configured = os.environ.get("KUBECONFIG") or (Path.home() / ".kube" / "config").exists()
    if not configured and "KUBERNETES_SERVICE_HOST" not in os.environ:
        found = "no KUBECONFIG, no ~/.kube/config and not in a pod"
        return [
            absent("Kubernetes", found, bool(required), "set KUBECONFIG to the file that your cluster's owner gave you")
        ]
    if not find_spec("kubernetes"):
        found = "the Python client is not installed"
        return [troubled("Kubernetes", found, bool(required), "pip install 'torchx-recsys[kubernetes]'")]
    done = probe("kubernetes", seconds=KUBERNETES_SECONDS)
    if done.returncode:
        remedy = "check the network, and the current context of KUBECONFIG"
        return [troubled("Kubernetes", last_line(done.stderr), bool(required), remedy)]
    cluster = json.loads(last_line(done.stdout))
    reached = Diagnosis("Kubernetes", Level.OK, f"{cluster['version']} at {cluster['host']}")
    return [reached, *(_installed(name, cluster, required) for name in KUBERNETES_APIS)]


def _installed(name: str, cluster: dict[str, Any], required: str | None) -> Diagnosis:
    group, needed_by, page = KUBERNETES_APIS[name]
    if group in cluster["groups"]:
        if name == "JobSet" and not cluster["jobset_is_current"]:
            found = f"{group} on the cluster is older than {OLDEST_JOBSET}, and jobs are refused"
            return troubled(name, found, required in needed_by, f"have it upgraded: {page}")
        return Diagnosis(name, Level.OK, f"{group} on the cluster")
    return absent(name, "not on the cluster", required in needed_by, f"have it installed: {page}")
