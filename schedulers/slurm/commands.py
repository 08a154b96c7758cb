"""Slurm's commands, and jobs read from the text that they print: it is the same since 22.05, unlike JSON."""

import logging
import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential
from torchx.specs import AppState

from schedulers.errors import SchedulerError

log = logging.getLogger(__name__)

# TorchX's SLURM_STATES lacks nine of these, and takes suspended jobs for pending and revoked ones for failed.
STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"), AppState.PENDING),
    **dict.fromkeys(("RESV_DEL_HOLD", "SPECIAL_EXIT"), AppState.PENDING),
    **dict.fromkeys(("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"), AppState.RUNNING),
    **dict.fromkeys(("STOPPED", "SUSPENDED"), AppState.RUNNING),
    **dict.fromkeys(("COMPLETED",), AppState.SUCCEEDED),
    **dict.fromkeys(("CANCELLED", "REVOKED"), AppState.CANCELLED),
    **dict.fromkeys(("BOOT_FAIL", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL"), AppState.FAILED),
    **dict.fromkeys(("OUT_OF_MEMORY", "PREEMPTED", "RECONFIG_FAIL", "TIMEOUT"), AppState.FAILED),
}
UNKNOWN_JOB = "Invalid job id specified"
# sbatch has sent the job but got no answer.
UNANSWERED = "timed out"
AWAY = re.compile("contact|connect|communication|timed out", re.IGNORECASE)
# Variables that users may set for all jobs, and the options that they stand for. The options of a job win.
DEFAULTS = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_EXPORT": "export",
    "SBATCH_PARTITION": "partition",
    "SBATCH_QOS": "qos",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "time",
    "SBATCH_WCKEY": "wckey",
}
# By these, Slurm's commands find the cluster and are let in. All other variables of theirs filter, sort or format what
# they print or, within a Slurm job, are about that job.
ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
COMMANDS = ("SLURM", "SBATCH", "SRUN", "SQUEUE", "SACCT", "SCANCEL", "SCONTROL", "SINFO")
# A controller that is restarted is back within minutes; `log -f` and `run --wait` must outlast that.
PATIENCE_SECONDS = 600
# Pauses before each look for a job that a controller may have taken without an answer, and may be slow to list.
LOOKS_AFTER_SECONDS = (0, 1, 2, 4, 8)


class ControllerAway(SchedulerError):
    """The controller of the cluster does not answer."""


class MaybeSubmitted(SchedulerError):
    """The controller did not answer a submission, and may still start the job."""


@dataclass(frozen=True)
class SlurmJob:
    """A job as Slurm shows it; fields that Slurm leaves out are empty."""

    slurm_state: str
    command: str = ""
    reason: str = ""
    start: str = ""
    exit_code: str = ""
    restarts: int | None = None

    @property
    def state(self) -> AppState:
        """TorchX's name for the state."""
        return STATES.get(self.slurm_state, AppState.UNKNOWN)

    @property
    def signal(self) -> int:
        """The signal that ended the batch script; 0 if none did."""
        signal = self.exit_code.partition(":")[2]
        return int(signal) if signal.isdecimal() else 0


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Runs a command of Slurm and returns what it printed.

    Raises:
        SchedulerError: The command is not installed or failed; the message is Slurm's own.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env or _environment())
    except FileNotFoundError as error:
        raise SchedulerError(f"{command[0]} is not installed here: run torchx where Slurm's commands work") from error
    if done.returncode:
        lines = [re.sub(rf"^{command[0]}: (error: )?", "", line.strip()) for line in done.stderr.splitlines()]
        kind = ControllerAway if AWAY.search(done.stderr) else SchedulerError
        raise kind(f"{command[0]}: {'; '.join(filter(None, lines)) or f'exit code {done.returncode}'}")
    return done.stdout


_patiently = retry(
    retry=retry_if_exception_type(ControllerAway),
    wait=wait_exponential(1, max=15),
    stop=stop_after_delay(PATIENCE_SECONDS),
    before_sleep=lambda state: log.warning("%s; asking again", state.outcome.exception()),  # pyrefly: ignore
    reraise=True,
)


def submit(script: Path, options: Sequence[str] = ()) -> str:
    """Submits a batch script and returns the job's id.

    Args:
        script: The script, in a directory that no other job has.
        options: Options of sbatch beside those in the script.

    Raises:
        SchedulerError: Slurm refuses it.
        MaybeSubmitted: It gave no answer, and does not list the job.
    """
    try:
        printed = run("sbatch", "--parsable", *options, str(script), env=_environment() | _defaults(script.read_text()))
    except ControllerAway as error:
        if UNANSWERED not in str(error).lower():
            raise
        log.warning("%s; looking whether the job was submitted all the same", error)
        if found := job_of(script):
            return found
        raise MaybeSubmitted(
            f"{error}; Slurm does not list the job, but may do so later: look with squeue --me, and if it stays away, "
            f"submit it again: sbatch {script}"
        ) from error
    # NUMBER or NUMBER;CLUSTER; a site's wrapper of sbatch may print a banner, too.
    found = re.findall(r"^(\d+)(?:;.*)?$", printed, re.MULTILINE)
    if not found:
        raise SchedulerError(f"sbatch: printed no job number: {printed.strip()!r}; see squeue --me")
    return found[-1]


def job_of(script: Path) -> str:
    """Returns the id of the job that runs a batch script; empty if Slurm lists none."""
    for pause in LOOKS_AFTER_SECONDS:
        time.sleep(pause)
        for line in _commands().splitlines():
            job_id, _, command = line.partition("|")
            if command == str(script):
                return job_id
    return ""


def of_all_jobs(option: str) -> str | None:
    """Returns the value of an option that the user's environment sets for all jobs; None if it sets none."""
    return next((os.environ.get(name) for name, each in DEFAULTS.items() if each == option), None)


def _defaults(script: str) -> dict[str, str]:
    """Returns the user's defaults for sbatch, to which they would be more than the script: those it says nothing of."""
    contradicting = {name for name, option in DEFAULTS.items() if f"\n#SBATCH --{option}=" in script}
    return {name: os.environ[name] for name in DEFAULTS if name in os.environ and name not in contradicting}


def _environment() -> dict[str, str]:
    """Returns the environment without the variables of Slurm's commands that would change what they do."""
    return {
        name: value for name, value in os.environ.items() if name in ACCESS or name.partition("_")[0] not in COMMANDS
    }


def cluster() -> str:
    """Returns the name of the cluster that this machine belongs to."""
    found = re.search(r"^ClusterName\s*=\s*(\S+)", run("scontrol", "show", "config"), re.MULTILINE)
    return found[1] if found else "cluster"


@_patiently
def _commands() -> str:
    return run("squeue", "--me", "--states=all", "--noheader", "--format=%F|%o")  # %F: an array's own number


@_patiently
def job(job_id: str) -> SlurmJob | None:
    """Returns a job; None if Slurm has no job of that number, or has forgotten it.

    Raises:
        ControllerAway: It did not answer for PATIENCE_SECONDS.
    """
    try:
        return _from_scontrol(run("scontrol", "show", "job", job_id))
    except SchedulerError as error:
        if UNKNOWN_JOB not in str(error):
            raise
    return _from_accounting([job_id]).get(job_id)


@_patiently
def states(job_ids: list[str]) -> dict[str, SlurmJob]:
    """Returns the states of several jobs, by two commands; jobs that Slurm has forgotten are left out."""
    listed = run("squeue", "--me", "--states=all", "--noheader", "--format=%A|%T").splitlines()
    known = {number: SlurmJob(state) for number, state in (line.split("|") for line in listed)}
    missing = [number for number in job_ids if number not in known]
    return {number: known[number] for number in job_ids if number in known} | _from_accounting(missing)


def default_limits() -> dict[str | None, str]:
    """Returns the time limit of a job that asks for none, by partition; None stands for the default partition."""
    limits: dict[str | None, str] = {}
    for line in run("sinfo", "--noheader", "--format=%P|%L|%l").splitlines():
        name, default, longest = line.split("|")
        limit = longest if default == "n/a" else default
        limits |= {name.rstrip("*"): limit} | ({None: limit} if name.endswith("*") else {})
    return limits


def hostnames(nodes: str) -> list[str]:
    """Returns the hosts of a node list such as n[1-3]."""
    return run("scontrol", "show", "hostnames", nodes).split() if nodes else []


def _from_scontrol(text: str) -> SlurmJob:
    def value(key: str, pattern: str = r"\S*") -> str:
        found = re.search(rf"\b{key}=({pattern})", text)
        return found[1] if found and found[1] not in ("(null)", "None", "Unknown", "N/A") else ""

    return SlurmJob(
        slurm_state=value("JobState"),
        command=value("Command", ".*"),
        reason=value("Reason"),
        start=value("StartTime"),
        exit_code=value("ExitCode"),
        restarts=int(value("Restarts") or 0),
    )


def _from_accounting(job_ids: list[str]) -> dict[str, SlurmJob]:
    if not job_ids:
        return {}
    wanted = ("--allocations", "--noheader", "--parsable2", "--format=JobID,State,ExitCode")
    try:
        lines = run("sacct", *wanted, f"--jobs={','.join(job_ids)}").splitlines()
    except SchedulerError:  # no accounting here: the record of the job must suffice
        return {}
    found = (line.split("|") for line in lines)
    return {number: SlurmJob(state.partition(" ")[0], exit_code=exit_code) for number, state, exit_code in found}
