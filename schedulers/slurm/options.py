"""The options of the scheduler `slurm`, and their `#SBATCH` lines."""

import re
import shlex
from dataclasses import dataclass, field, fields, replace

from torchx.schedulers.api import StructuredOpts

from schedulers.contract import MAX_FREE_RESTARTS
from schedulers.errors import SchedulerError, check_least
from schedulers.predecessors import Predecessor, predecessors
from schedulers.slurm.app_id import AppId

# Options of sbatch that are passed on as they are, under the same name.
PASSED_ON = (
    *("account", "partition", "qos", "time", "constraint", "nodelist", "exclude", "reservation", "gres", "nice"),
    *("dependency", "begin", "comment", "mail_user", "mail_type", "clusters"),
)
IF_MISSED = "--kill-on-invalid-dep=yes"  # without it, a job whose dependency has failed waits for ever
OPEN_MODES = ("append", "truncate")
# Options of sbatch that would break status, logs or retries.
REFUSED = {
    **dict.fromkeys(("-a", "--array"), "submit one job for each"),
    **dict.fromkeys(("-o", "--output", "-e", "--error"), "torchx log needs the logs in the job directory"),
    **dict.fromkeys(("-D", "--chdir"), "submit it there, or give job_dir"),
    **dict.fromkeys(("-M", "--clusters"), "give -cfg clusters"),
}


@dataclass
class SlurmOpts(StructuredOpts):
    """The options; a list is written `a,b` on the command line, and lists of lines `a;b`."""

    host: str | None = None
    """Login node to submit over SSH, HOST or USER@HOST, as ssh takes it; this machine if unset."""

    remote_dir: str = "~/.torchx-recsys"
    """Directory on the host for code and jobs, which all nodes share."""

    venv: str | None = None
    """Virtual environment of the job, on the cluster: its programs are found first."""

    partition: list[str] | None = None
    """Partitions, the first free one is used; the cluster's default if unset."""

    clusters: list[str] | None = None
    """Clusters that share a slurmdbd, the job goes to the one that starts it first; this machine's own if unset."""

    account: str | None = None
    """Account that the job is charged to."""

    qos: str | None = None
    """Quality of service."""

    time: str | None = None
    """Time limit: MINUTES, HOURS:MINUTES:SECONDS or DAYS-HOURS, 0 for none; the partition's if unset."""

    signal_lead: int = 120
    """Seconds before the time limit at which all ranks are signalled to save and the job is put back into the queue."""

    requeue: bool = True
    """Put the job back into the queue after a time limit, a preemption, a lost node or a failure to be retried."""

    max_free_restarts: int = MAX_FREE_RESTARTS
    """Most restarts in a row that gain no step, after preemptions, time limits, lost nodes; then the job has failed."""

    ntasks_per_node: int = 1
    """Replicas on each node."""

    constraint: str | None = None
    """Features that the nodes must have, such as a100&nvlink."""

    nodelist: list[str] | None = None
    """Nodes that must be among those of the job, such as node[01-04]."""

    exclude: list[str] | None = None
    """Nodes that must not be used."""

    exclusive: bool = False
    """Share no node with another job."""

    reservation: str | None = None
    """Reservation to run in."""

    gres: list[str] | None = None
    """Generic resources of each node, such as gpu:a100:8; replaces the component's GPUs."""

    mem: str | None = None
    """Memory of each node, such as 64G; 0: all of it; none: no request; the component's if unset."""

    nice: int | None = None
    """Amount by which the priority of the job is lowered."""

    after: list[str] | None = None
    """Handles of Slurm jobs that must succeed before this one starts."""

    after_any: list[str] | None = None
    """Handles of Slurm jobs that must end before this one starts, however they do."""

    notify: list[str] | None = None
    """Tags of your Apprise configuration, to tell how the job ended; all is everybody."""

    dependency: list[str] | None = None
    """Other jobs to wait for, as sbatch has it, such as afternotok:1234 or singleton."""

    begin: str | None = None
    """Earliest start, such as 20:00 or now+1hour."""

    comment: str | None = None
    """Comment on the job."""

    mail_user: str | None = field(default=None, metadata={"cfg_key": "mail-user"})
    """Receiver of mail about the job."""

    mail_type: list[str] | None = field(default=None, metadata={"cfg_key": "mail-type"})
    """Events that send mail: BEGIN, END, FAIL, REQUEUE, TIME_LIMIT_90 and so on."""

    open_mode: str = "append"
    """Mode in which a restart opens the logs: append or truncate."""

    container_image: str | None = None
    """Container image to run in, such as a .sqsh file; needs the pyxis plugin of Slurm."""

    container_mounts: list[str] | None = None
    """Mounts of the container: SOURCE:TARGET or SOURCE:TARGET:ro; the job directory is always mounted."""

    setup: list[str] | None = None
    """Lines of shell to run on the first node before the job, such as module load cuda;source env.sh."""

    sbatch_args: list[str] | None = None
    """Any other options of sbatch, a space between name and value: --licenses matlab;--switches 1."""

    srun_args: list[str] | None = None
    """Any other options of srun, in the same form: --mpi none;--cpu-bind verbose."""

    job_dir: str | None = None
    """New directory, on storage that all nodes share, for a copy of the workspace; the job then runs in it."""

    def check(self) -> None:
        """Refuses values that Slurm accepts but that cannot work.

        Raises:
            SchedulerError: An option has a value that cannot work.
        """
        check_least("signal_lead", self.signal_lead, 0)
        self.check_lead(self.time)
        check_least("ntasks_per_node", self.ntasks_per_node, 1)
        check_least("max_free_restarts", self.max_free_restarts, 0)
        for one in self.predecessors:
            if AppId.parse(one.app_id).host != (self.host or ""):
                raise SchedulerError(
                    f"{one.option}: must be a job {f'on the host {self.host}' if self.host else 'of this machine'}: a"
                    " job waits only for jobs of its own cluster"
                )
            if not AppId.parse(one.app_id).number.isdecimal():
                raise SchedulerError(f"{one.option}: must end with the number of a Slurm job")
        if self.predecessors and self.dependency:
            raise SchedulerError(
                f"-cfg dependency={','.join(self.dependency)}: cannot be used beside after and after_any; write"
                " all of it as a dependency"
            )
        for arg in _with_commas(self.sbatch_args or []):
            if why := _why_refused(arg):
                raise SchedulerError(f"-cfg sbatch_args={arg}: cannot be used: {why}")
        if self.open_mode not in OPEN_MODES:
            raise SchedulerError(f"-cfg open_mode={self.open_mode}: must be {' or '.join(OPEN_MODES)}")
        if self.venv is not None and not re.match(r"[~/]", self.venv):
            raise SchedulerError(f"-cfg venv={self.venv}: must be an absolute path, or begin with ~")
        for option in fields(self):
            if "\n" in str(getattr(self, option.name)):
                raise SchedulerError(f"-cfg {option.name}: must not contain a line break")

    @property
    def predecessors(self) -> list[Predecessor]:
        """The jobs that this one waits for."""
        return predecessors("slurm", self.after, self.after_any)

    @property
    def predecessors_there(self) -> list[Predecessor]:
        """The same, with the handles that they have on the host."""
        return [
            replace(one, handle=f"{one.handle.rpartition('/')[0]}/{AppId.parse(one.app_id).there}")
            for one in self.predecessors
        ]

    def before(self) -> list[str]:
        """Returns lines of shell that come before all of the job's own."""
        if self.venv is None:
            return []
        home, rest = ('"$HOME"', self.venv[1:]) if self.venv.startswith("~") else ("", self.venv)
        folder = home + (shlex.quote(rest) if rest else "")
        return [f"export VIRTUAL_ENV={folder}", 'export PATH="$VIRTUAL_ENV/bin:$PATH"']

    def place(self, own: str, waits: list[Predecessor]) -> str:
        """Returns the cluster, of several, that has the jobs to wait for; empty if any cluster will do.

        Args:
            own: The name of this machine's cluster.
            waits: The jobs that it waits for.

        Raises:
            SchedulerError: The jobs are on a cluster that this job is not sent to, or on several.
        """
        asked, there = self.clusters or [own], ""
        for one in waits:
            cluster = AppId.parse(one.app_id).cluster or own
            if (cluster not in asked and asked != ["all"]) or there not in ("", cluster):
                raise SchedulerError(
                    f"{one.option}: is on the cluster {cluster}, and a job waits only for jobs on its own cluster; give"
                    f" -cfg clusters={cluster}"
                )
            there = cluster
        return there if self.clusters else ""

    def check_lead(self, limit: str | None) -> None:
        """Refuses a warning that would come before the job has begun.

        Args:
            limit: The time limit of the job, as Slurm writes it.

        Raises:
            SchedulerError: The job would be warned at once, and be requeued for ever.
        """
        seconds = _seconds(limit) if limit else None
        if seconds is not None and self.signal_lead >= seconds:
            raise SchedulerError(f"-cfg signal_lead={self.signal_lead}: must be less than the time limit ({limit})")

    def sbatch(self) -> list[str]:
        """Returns the options of sbatch."""
        given = ((name.replace("_", "-"), getattr(self, name)) for name in PASSED_ON)
        return [
            *(f"--{name}={_value(value)}" for name, value in given if value is not None),
            *(["--exclusive"] if self.exclusive else []),
            *([IF_MISSED] if self.dependency else []),
            f"--signal=B:USR1@{self.signal_lead}",
            f"--open-mode={self.open_mode}",
            "--requeue" if self.requeue else "--no-requeue",
            *_with_commas(self.sbatch_args or []),
        ]


def dependency(found: list[Predecessor], cluster: str = "") -> list[str]:
    """Returns the options of sbatch for jobs that must end first, and for the cluster that they are on.

    These are not in the script, so that a user can submit the script again when those jobs are long gone.
    """
    kinds = [f"{'afterany' if one.any_end else 'afterok'}:{AppId.parse(one.app_id).number}" for one in found]
    there = [f"--clusters={cluster}"] if cluster else []
    return [f"--dependency={','.join(kinds)}", IF_MISSED, *there] if found else []


def _why_refused(arg: str) -> str:
    """Returns why an option of sbatch cannot be used, however it is abbreviated; empty if it can."""
    given = re.split(r"[ =]", arg)[0]
    if given.startswith("--"):
        return next((why for name, why in REFUSED.items() if len(given) > 3 and name.startswith(given)), "")
    return REFUSED.get(given[:2], "")


def _with_commas(args: list[str]) -> list[str]:
    """Joins options that TorchX has split at commas, where it ends each item of a list."""
    whole: list[str] = []
    for arg in args:
        if whole and not arg.startswith("-"):
            whole[-1] += f",{arg}"
        else:
            whole.append(arg)
    return whole


def sbatch_word(text: str) -> str:
    """Quotes a value for an `#SBATCH` line, in which a backslash counts even between quotes."""
    return shlex.quote(text.replace("\\", "\\\\"))


def _value(value: str | int | list[str]) -> str:
    return sbatch_word(",".join(value) if isinstance(value, list) else str(value))


def _seconds(time: str) -> int | None:
    """Returns a time limit in seconds, as Slurm reads it.

    None stands for no limit, which Slurm spells 0, and for any text that Slurm itself will refuse.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", time)
    if not found:
        return None
    days, first, second, third = (int(group or 0) for group in found.groups())
    if found[1] or found[4]:  # days-hours:minutes:seconds, hours:minutes:seconds
        return (((days * 24 + first) * 60 + second) * 60 + third) or None
    return (first * 60 + second) or None  # minutes:seconds
