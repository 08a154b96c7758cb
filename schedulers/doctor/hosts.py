"""Checks of a Slurm cluster that is reached over SSH, and of the environment that its jobs get there."""

import json
import platform
import shlex
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from schedulers.doctor.clusters import examine_slurm
from schedulers.doctor.diagnosis import Diagnosis, Level, last_line
from schedulers.errors import SchedulerError
from schedulers.slurm.host import Host, reach
from schedulers.slurm.options import SlurmOpts

PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "torchx-nightly", "torchx-recsys")
OURS = PACKAGES[-1]
# Prints the versions in the environment of a job, as JSON.
VERSIONS = f"""\
import json, platform
from importlib.metadata import distributions
found = {{each.metadata["Name"].lower().replace("_", "-"): each.version for each in distributions()}}
wanted = {{name: found[name] for name in {PACKAGES} if name in found}}
print(json.dumps({{"python": platform.python_version()}} | wanted))
"""


def slurm_over_ssh(host: str, venv: str | None) -> list[Diagnosis]:
    """Checks the connection to a host, its Slurm, and its versions against those of this machine.

    Args:
        host: The host.
        venv: The virtual environment of the jobs there, if they have one.
    """
    try:
        at = reach(host)
        assert isinstance(at, Host)
        kind = at.connection.run('echo "$HOSTNAME, bash $BASH_VERSION"').output.decode().strip()
        found = Diagnosis("SSH", Level.OK, f"{host} is {kind}")
        return [found, *examine_slurm(lambda command: at.call(*command), True, at.remedy), *_environment(at, venv)]
    except SchedulerError as error:
        why, _, remedy = str(error).rpartition("; ")
        return [Diagnosis("SSH", Level.WRONG, why or remedy, remedy if why else "")]


def _environment(at: Host, venv: str | None) -> list[Diagnosis]:
    place = f"environment on {at.host}"
    said = at.connection.run("\n".join([*SlurmOpts(venv=venv).before(), f"python -c {shlex.quote(VERSIONS)}"]))
    if said.code:
        remedy = "make an environment there, and name it: --venv, or venv in [slurm] of .torchxconfig"
        return [Diagnosis(place, Level.WRONG, last_line(said.errors), remedy)]
    there: dict[str, str] = json.loads(said.output)
    shown = ", ".join(f"{name} {number}" for name, number in there.items())
    if OURS not in there:
        remedy = f"pip install {OURS} there, or name the environment that has it: --venv"
        return [Diagnosis(place, Level.WRONG, f"{shown}: no {OURS}", remedy)]
    return [Diagnosis(place, Level.OK, shown), *_differences(there, at.host)]


def _differences(there: Mapping[str, str], host: str) -> list[Diagnosis]:
    """Returns a finding for each version that differs; what is not installed here matters to no job."""
    here = {name: number for name in PACKAGES if (number := _version(name))} | {"python": platform.python_version()}
    differing = [name for name, number in here.items() if name in there and _release(number) != _release(there[name])]
    remedy = "jobs have the version there; install the same here to try things alike"
    return [Diagnosis(name, Level.NOTE, f"{there[name]} on {host}, {here[name]} here", remedy) for name in differing]


def _release(number: str) -> str:
    """Returns a version without its build, such as +cpu."""
    return number.partition("+")[0]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
