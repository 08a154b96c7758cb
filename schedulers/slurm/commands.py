"""Runs Slurm's commands, and parses jobs from their text: unlike JSON, it has not changed since 22.05."""

import logging
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential
from torchx.specs import AppState

from schedulers.contract import NO_PROGRAM
from schedulers.errors import MaybeSubmitted, SchedulerError
from schedulers.queue_room import NoRoom
from schedulers.slurm.app_id import AppId
from schedulers.slurm.transport import PATIENCE_SECONDS, Answer, ControllerAway, HostAway, Transport

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
AWAY = re.compile("contact|connect|communication|timed out|reached now", re.IGNORECASE)
NO_CLUSTER = "known by database"  # part of Slurm's message, beside "can't be reached now"
# Messages about limits on queued jobs: all of them, then limits to which the jobs of other users count.
FULL = re.compile(r"(Max|Grp)SubmitJobs?\w*Limit|job queue full|Unable to create job record")
FULL_OF_OTHERS = re.compile(r"GrpSubmitJob|PerAccount|job queue full|Unable to create job record")
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
# Pauses before each look for a job that a controller may have taken without an answer, and may be slow to list.
LOOKS_AFTER_SECONDS = (0, 1, 2, 4, 8)
ATTEMPTS = (1, 2)


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


def run(at: Transport, *command: str, kept: Collection[str] = ()) -> str:
    """Runs a command of Slurm and returns what it printed.

    Args:
        at: Where it runs.
        command: The command.
        kept: As of `Transport.call`.

    Raises:
        SchedulerError: The command is not installed or failed; the message is Slurm's own.
    """
    return printed(at, command[0], at.call(*command, kept=kept))


def printed(at: Transport, command: str, done: Answer) -> str:
    """Returns what a command printed.

    Raises:
        SchedulerError: The command is not installed or failed; the message is Slurm's own.
    """
    if done.returncode == NO_PROGRAM:
        raise SchedulerError(f"{command} is not installed {f'on {at.host}' if at.host else 'here'}: {at.remedy}")
    if done.returncode:
        lines = [re.sub(rf"^{command}: (error: )?", "", line.strip()) for line in done.stderr.splitlines()]
        raise _kind(done.stderr)(f"{command}: {'; '.join(filter(None, lines)) or f'exit code {done.returncode}'}")
    return done.stdout


def _kind(errors: str) -> type[SchedulerError]:
    if FULL.search(errors):
        return NoRoom
    return ControllerAway if AWAY.search(errors) and NO_CLUSTER not in errors else SchedulerError


_patiently = retry(
    retry=retry_if_exception_type(ControllerAway),
    wait=wait_exponential(1, max=15),
    stop=stop_after_delay(PATIENCE_SECONDS),
    before_sleep=lambda state: log.warning("%s; asking again", state.outcome.exception()),  # pyrefly: ignore
    reraise=True,
)


def default_clusters(at: Transport) -> list[str]:
    """Returns the clusters that the user's variables name for all jobs; empty for the machine's own."""
    named = at.environ.get("SBATCH_CLUSTERS") or at.environ.get("SLURM_CLUSTERS")
    return named.split(",") if named else []


def _at(*clusters: str) -> list[str]:
    """Returns the option that sends a command to these clusters; to this machine's own if none is named."""
    named = ",".join(filter(None, clusters))
    return [f"--clusters={named}"] if named else []


def _among(*clusters: str) -> list[str]:
    """Returns the option for jobs of these clusters; if none is named, of the federation of this machine's own."""
    return _at(*clusters) or ["--federation"]


def submit(at: Transport, script: Path, text: str, options: Sequence[str] = (), clusters: Sequence[str] = ()) -> AppId:
    """Submits a batch script and returns the job's id.

    Args:
        at: Where Slurm and the script are.
        script: The script, in a directory that no other job has.
        text: Its content.
        options: Options of sbatch beside those in the script.
        clusters: The clusters named in the options; Slurm chooses one of them.

    Raises:
        SchedulerError: Slurm refuses it.
        NoRoom: Slurm refuses it until other jobs have ended.
        MaybeSubmitted: Slurm gave no answer, and does not list the job.
    """
    try:
        said = _sbatch(at, script, text, options, clusters)
    except ControllerAway as error:
        if UNANSWERED not in str(error).lower():
            raise
        log.warning("%s; looking whether the job was submitted all the same", error)
        if found := job_of(at, script, clusters):
            return found
        raise MaybeSubmitted(
            f"{error}; Slurm does not list the job, but may do so later: look with {_squeue(clusters)}, and if it stays"
            f" away, submit it again: sbatch {script}"
        ) from error
    if found := _id_in(said, at):
        return found
    raise SchedulerError(f"sbatch: printed no job number: {said.strip()!r}; see {_squeue(clusters)}")


def _id_in(said: str, at: Transport) -> AppId | None:
    """Returns the id that sbatch printed, NUMBER or NUMBER;CLUSTER; a site's wrapper of it may print a banner, too."""
    found = re.findall(r"^(\d+)(?:;(.*))?$", said, re.MULTILINE)
    return AppId(found[-1][0], found[-1][1].strip(), at.host) if found else None


def _sbatch(at: Transport, script: Path, text: str, options: Sequence[str], clusters: Sequence[str]) -> str:
    kept, refusal = _defaults(text), ""
    for attempt in ATTEMPTS:  # the last job may end after a refusal
        try:
            command = ("sbatch", "--parsable", *options, str(script))
            done = at.call_once(*command, job_dir=script.parent, attempt=attempt, kept=kept)
            return printed(at, "sbatch", done)
        except NoRoom as error:
            refusal = str(error)
            if FULL_OF_OTHERS.search(refusal) or run(at, "squeue", *_among(*clusters), "--me", "--noheader"):
                raise
    raise SchedulerError(f"{refusal}; and you have no job whose end could make room for this one")


def submitted_as(at: Transport, script: Path, clusters: Sequence[str]) -> AppId | None:
    """Returns the job that runs a batch script whose submitter was killed; None if it was not submitted, and never is.

    Args:
        at: Where Slurm and the script are.
        script: The script.
        clusters: The clusters to which it may have been submitted.
    """
    for attempt in ATTEMPTS if at.host else ():
        # Does nothing but take the place of a submission that has not begun yet.
        done = at.call_once("true", job_dir=script.parent, attempt=attempt)
        if not done.returncode:
            return _id_in(done.stdout, at)
        if UNANSWERED in done.stderr.lower():
            break
    return job_of(at, script, clusters)


def _squeue(clusters: Sequence[str]) -> str:
    return " ".join(["squeue", "--me", *_at(*clusters)])


def job_of(at: Transport, script: Path, clusters: Sequence[str] = ()) -> AppId | None:
    """Returns the id of the job that runs a batch script on one of these clusters; None if Slurm lists none."""
    for pause in LOOKS_AFTER_SECONDS:
        time.sleep(pause)
        for app_id, command in _commands(at, clusters):
            if command == str(script):
                return app_id
    return None


def of_all_jobs(at: Transport, option: str) -> str | None:
    """Returns the value of an option that the user's environment sets for all jobs; None if it sets none."""
    return next((at.environ.get(name) for name, each in DEFAULTS.items() if each == option), None)


def _defaults(script: str) -> list[str]:
    """Returns the names of SBATCH_ variables that do not override an option in the script."""
    return [name for name, option in DEFAULTS.items() if f"\n#SBATCH --{option}=" not in script]


def cluster(at: Transport) -> str:
    """Returns the name of the cluster that a machine belongs to."""
    found = re.search(r"^ClusterName\s*=\s*(\S+)", run(at, "scontrol", "show", "config"), re.MULTILINE)
    return found[1] if found else "cluster"


@_patiently
def _commands(at: Transport, clusters: Sequence[str]) -> list[tuple[AppId, str]]:
    return [*_listed(at, clusters, "%F|%o")]  # %F: an array's own number


def _listed(at: Transport, clusters: Sequence[str], form: str) -> Iterator[tuple[AppId, str]]:
    """Yields the user's jobs, each with the rest of its line in squeue's output."""
    cluster = ""
    for line in run(at, "squeue", *_among(*clusters), "--me", "--states=all", f"--format={form}").splitlines():
        number, _, rest = line.partition("|")
        if number.startswith("CLUSTER: "):  # a header, which names the cluster of the lines below
            cluster = number.partition(": ")[2].strip()
        elif number.isdecimal():
            yield AppId(number, cluster, at.host), rest


@_patiently
def job(at: Transport, app_id: AppId) -> SlurmJob | None:
    """Returns a job; None if Slurm has no job of that number, or has forgotten it.

    Raises:
        ControllerAway: The controller did not answer for PATIENCE_SECONDS.
    """
    try:
        return _from_scontrol(run(at, "scontrol", *_among(app_id.cluster), "show", "job", app_id.number))
    except SchedulerError as error:
        if UNKNOWN_JOB not in str(error):
            raise
    return _from_accounting(at, [app_id]).get(app_id)


def states(at: Transport, app_ids: list[AppId]) -> dict[AppId, SlurmJob]:
    """Returns the states of several jobs, by two commands a cluster; jobs that Slurm has forgotten are left out.

    Jobs on another cluster that does not answer are UNKNOWN; nothing waits for them.
    """
    own = [app_id for app_id in app_ids if not app_id.cluster]
    found = _patiently(_states)(at, "", own) if own else {}
    for cluster in sorted({app_id.cluster for app_id in app_ids} - {""}):
        there = [app_id for app_id in app_ids if app_id.cluster == cluster]
        try:
            found |= _states(at, cluster, there)
        except SchedulerError as error:
            log.warning("the states of %d jobs on the cluster %s are unknown: %s", len(there), cluster, error)
            found |= dict.fromkeys(there, SlurmJob("UNKNOWN"))
    return found


def _states(at: Transport, cluster: str, app_ids: list[AppId]) -> dict[AppId, SlurmJob]:
    known = {app_id: SlurmJob(state) for app_id, state in _listed(at, [cluster], "%A|%T")}
    missing = [app_id for app_id in app_ids if app_id not in known]
    return {app_id: known[app_id] for app_id in app_ids if app_id in known} | _from_accounting(at, missing)


def cancel(at: Transport, app_id: AppId) -> None:
    """Cancels a job. Does nothing if Slurm does not know the job."""
    run(at, "scancel", *_at(app_id.cluster), app_id.number)  # scancel reaches all clusters of a federation anyway


def default_limits(at: Transport, cluster: str = "") -> dict[str | None, str]:
    """Returns the time limit of a job without its own, by partition; None stands for the default partition."""
    limits: dict[str | None, str] = {}
    for line in run(at, "sinfo", *_at(cluster), "--noheader", "--format=%P|%L|%l").splitlines():
        name, default, longest = line.split("|")
        limit = longest if default == "n/a" else default
        limits |= {name.rstrip("*"): limit} | ({None: limit} if name.endswith("*") else {})
    return limits


def hostnames(at: Transport, nodes: str) -> list[str]:
    """Returns the hosts of a node list such as n[1-3]."""
    return run(at, "scontrol", "show", "hostnames", nodes).split() if nodes else []


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


def _from_accounting(at: Transport, app_ids: list[AppId]) -> dict[AppId, SlurmJob]:
    """Returns the jobs, all of one cluster, that the accounting knows."""
    if not app_ids:
        return {}
    cluster = app_ids[0].cluster
    wanted = ("--allocations", "--noheader", "--parsable2", "--format=JobID,State,ExitCode")
    try:
        jobs = ",".join(app_id.number for app_id in app_ids)
        lines = run(at, "sacct", *_among(cluster), *wanted, f"--jobs={jobs}").splitlines()
    except HostAway:
        raise
    except SchedulerError:  # no accounting here: the record of the job must suffice
        return {}
    found = (line.split("|") for line in lines)
    return {
        AppId(number, cluster, at.host): SlurmJob(state.partition(" ")[0], exit_code=code)
        for number, state, code in found
    }
