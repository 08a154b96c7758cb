"""The state of a Slurm job and of its replicas, from Slurm and from the job's record, in TorchX's terms."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import NONE, AppState, ReplicaStatus, Role, RoleStatus, is_terminal

from schedulers.first_error import first_error, structured
from schedulers.predecessors import Look, Predecessor, missed, waits_for
from schedulers.slurm.commands import SlurmJob, hostnames
from schedulers.slurm.record import Record
from trainer.core.outcome import STOPPED_WORD, WRONG_INPUT_WORDS
from trainer.core.progress import TrainingProgress, step_of

FINAL_STATES = {"succeeded": AppState.SUCCEEDED, "failed": AppState.FAILED, "cancelled": AppState.CANCELLED}
# The state of an array is the first of these that any of its tasks has.
LAST_TO_END = (AppState.RUNNING, AppState.PENDING, AppState.FAILED, AppState.CANCELLED)
SHOWN_REPLICAS = 8
NOT_YET_MET, NEVER_MET = "Dependency", "DependencyNeverSatisfied"
# Slurm's reasons for which a job waits until somebody acts.
HELD = re.compile("held|hold", re.IGNORECASE)
NEVER = re.compile(
    "BadConstraints|Invalid(Account|QOS)|(Account|QOS|AccountingPolicy)NotAllowed|ReservationDeleted|MaxMemPerLimit"
    r"|(Partition|Association|QOS)(Time|Node)Limit|(Assoc|QOS)M(ax|in)\w*(PerJob|WallDuration)\w*"
)
# Slurm's line on a job that somebody cancelled; others go on with DUE TO and a reason.
CANCELLED = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*")


@dataclass(frozen=True)
class View:
    """The two sources on a job: `job` is None if Slurm has forgotten it, `record` if TorchX did not submit it."""

    job: SlurmJob | None
    record: Record | None
    look: Look = lambda _: (None, "")

    @cached_property
    def _note(self) -> str:
        return self.record.state if self.record else ""

    @property
    def _noted(self) -> AppState | None:
        """The final state that the batch script has written, if it has."""
        return FINAL_STATES.get(self._note.partition(":")[0])

    @property
    def is_known(self) -> bool:
        """Whether Slurm knows the job, or the job has noted its end."""
        return self.job is not None or self._noted is not None

    @cached_property
    def state(self) -> AppState:
        """The state; a job that finished has succeeded, even if Slurm killed it while it ended."""
        if self.job is None:
            return self._noted or (AppState.CANCELLED if self._was_cancelled else AppState.FAILED)
        if self.job.slurm_state == "COMPLETING":
            return self._noted or (AppState.PENDING if self._note.startswith("requeued") else AppState.RUNNING)
        finished = self._noted == AppState.SUCCEEDED and is_terminal(self.job.state)
        return AppState.SUCCEEDED if finished else self.job.state

    @property
    def _was_cancelled(self) -> bool:
        """Whether an ended job that noted no end was cancelled: by Slurm's or torchx's record, or while it waited.

        A job without any note may have started, too, on a node that could not write it.
        """
        if self._note.startswith("running"):
            return bool(CANCELLED.search(self._last_log))
        return bool(self._note or self._missed or (self.record and self.record.cancelled))

    def describe(self, app_id: str) -> DescribeAppResponse:
        """Returns the whole status."""
        role = self.record.role if self.record else None
        return DescribeAppResponse(
            app_id=app_id,
            state=self.state,
            num_restarts=self._restarts,
            msg=self._message(),
            structured_error_msg=self._first_error() if self.state == AppState.FAILED and role else NONE,
            roles=[Role(name=role, image="", num_replicas=self._replicas, metadata=self._code)] if role else [],
            roles_statuses=[RoleStatus(role, self._replica_statuses(role))] if role else [],
        )

    @property
    def _code(self) -> dict[str, str]:
        """The digest of the code that was sent to a host."""
        return {"code": self.record.about.code} if self.record and self.record.about.code else {}

    @property
    def _restarts(self) -> int:
        if self.job and self.job.restarts is not None:
            return self.job.restarts
        return max(0, self.record.attempts - 1) if self.record else 0

    @cached_property
    def _hosts(self) -> list[str]:
        """The host of every replica of the last attempt."""
        if self.state == AppState.PENDING:
            return []
        nodes, counts = self.record.layout if self.record else ("", [])
        return [host for host, count in zip(self._names(nodes), counts, strict=False) for _ in range(count)]

    def _names(self, nodes: str) -> list[str]:
        return hostnames(self.record.at, nodes) if self.record else []

    @property
    def _replicas(self) -> int:
        return len(self._hosts) or (self.record.about.replicas if self.record else 0)

    def _replica_statuses(self, role: str) -> list[ReplicaStatus]:
        hosts = self._hosts or [""] * self._replicas
        failures = self._failures if self.state == AppState.FAILED else {}
        codes = self.record.exit_codes() if self.record and self.state != AppState.PENDING else {}
        return [
            ReplicaStatus(replica, self._replica_state(codes.get(replica)), role, host, failures.get(replica, NONE))
            for replica, host in enumerate(hosts)
        ]

    def _replica_state(self, exit_code: int | None) -> AppState:
        """Returns the state of a replica that has ended with this code, or that of the job if it has not."""
        if exit_code is None or self.state == AppState.SUCCEEDED:
            return self.state
        return AppState.FAILED if exit_code else AppState.SUCCEEDED

    def _first_error(self) -> str:
        """Returns the error of the replica that failed first, unless the trainer's own line explains the end."""
        if not self._failures or not self.record or WRONG_INPUT_WORDS in self._note or STOPPED_WORD in self._note:
            return NONE
        replica, failure = next(iter(self._failures.items()))
        log = self.record.replica_log(replica, "err")
        if not (error := first_error(self.record.tail(replica, "err"))):
            return NONE
        message = f"{self.record.role}/{replica}, {error}"
        return structured(message, json.loads(failure)["errorCode"], self.record.at.here(log).stat().st_mtime)

    @cached_property
    def _last_log(self) -> str:
        """Returns what the batch script, srun and Slurm wrote in the last attempt."""
        log = self.record.at.here(self.record.batch_log) if self.record else None
        if not log or not log.exists():
            return ""
        return re.split(r"^\[torchx\] .* running on ", log.read_text(errors="replace"), flags=re.MULTILINE)[-1]

    @property
    def _last_log_exists(self) -> bool:
        return bool(self.record and self.record.at.here(self.record.batch_log).exists())

    @cached_property
    def _failures(self) -> dict[int, str]:
        """Returns srun's messages on the replicas that failed in the last attempt, in the form that TorchX prints."""
        found = {}
        for tasks, ending in re.findall(r"^srun: error: \S+: tasks? ([\d,-]+): (.*)$", self._last_log, re.MULTILINE):
            code = re.search(r"exit code (\d+)", ending)
            error = json.dumps({"message": ending, "errorCode": int(code[1]) if code else 0})
            found |= dict.fromkeys(_numbers(tasks), error)
        return found

    def _message(self) -> str:
        parts = [self._reason(), self._placement(), *(f"code {digest}" for digest in self._code.values())]
        if self.state == AppState.FAILED and self.record:
            log = self.record.batch_log
            shared = f"its node could not write {log}: the job directory must be on storage that all nodes share"
            parts.append(f"see {log}" if self._last_log_exists else shared)
        return "; ".join(part for part in parts if part)

    def _reason(self) -> str:
        if self.job is None:
            if self._noted:
                return self._note
            if self._note or (self.record and self.record.cancelled):
                return f"ended, and left only: {self._note or 'nothing'}"
            return self._missed or "left nothing, if it was not cancelled by scancel while it waited"
        if self.state == AppState.PENDING:
            waits = waits_for(self._predecessors, self.look) if self.job.reason == NOT_YET_MET else ""
            waiting = waits or _waiting(self.job.reason)
            expected = f"expected to start {self.job.start}" if self.job.start else ""
            return ", ".join(part for part in (waiting, expected, self._note) if part)
        if self._noted == self.state:
            return self._note
        if self.state in (AppState.FAILED, AppState.CANCELLED):
            return f"{self.job.slurm_state}{_ending(self.job)}{self._why()}"
        if self.state != AppState.RUNNING:
            return ""
        training, cancelled = self.training(), self.record and self.record.cancelled
        how_far = training.in_words() if training else self._step()
        return ", ".join(filter(None, [self.job.slurm_state.lower(), "being cancelled" if cancelled else "", how_far]))

    def training(self) -> TrainingProgress | None:
        """Returns how far the job is; None if it has not said, or does not run."""
        return self.record.training() if self.record and self.state == AppState.RUNNING else None

    def how_far(self) -> str:
        """Returns how far the job is in a few words; empty if nothing is known of it."""
        training = self.training()
        return training.short() if training else self._step()

    def _step(self) -> str:
        """Returns the step that the log shows, of a job that writes no progress."""
        return step_of(self.record.tail(0, "out")) if self.record else ""

    def _why(self) -> str:
        """Returns why a job ended if its batch script has noted nothing."""
        assert self.job
        if self.job.reason == NEVER_MET:
            return f": {self._missed or f'a job that it depends on did not end as asked ({self.job.reason})'}"
        if self.record and self._last_log_exists and self.job.slurm_state == "FAILED" and self.job.signal:
            again = f"submit it again to go on: sbatch {self.record.script}"
            return f": the batch script itself was killed, and nobody was left to retry; {again}"
        return ""

    @property
    def _predecessors(self) -> list[Predecessor]:
        return self.record.about.predecessors if self.record else []

    @property
    def _missed(self) -> str:
        return missed(self._predecessors, self.look)

    def _placement(self) -> str:
        hosts = self._hosts
        shown = ", ".join(f"{replica} on {host}" for replica, host in enumerate(hosts[:SHOWN_REPLICAS]))
        more = f" and {len(hosts) - SHOWN_REPLICAS} more" if len(hosts) > SHOWN_REPLICAS else ""
        return f"replica {shown}{more}" if hosts else ""


def describe_array(app_id: str, tasks: Sequence[DescribeAppResponse]) -> DescribeAppResponse:
    """Returns the status of an array from the statuses of its tasks, each with its own role."""
    states = [task.state for task in tasks]
    failures = [task.structured_error_msg for task in tasks if task.structured_error_msg != NONE]
    return DescribeAppResponse(
        app_id=app_id,
        state=next((state for state in LAST_TO_END if state in states), AppState.SUCCEEDED),
        num_restarts=sum(task.num_restarts for task in tasks),
        msg="\n".join(f"{task.roles[0].name}: {task.state.name}, {task.msg}" for task in tasks),
        structured_error_msg=next(iter(failures), NONE),
        roles=[role for task in tasks for role in task.roles],
        roles_statuses=[status for task in tasks for status in task.roles_statuses],
    )


def _waiting(reason: str) -> str:
    if HELD.search(reason):
        return f"held: {reason}, until somebody releases it: scontrol release"
    if NEVER.fullmatch(reason):
        return f"waits for ever: {reason}: cancel it, and submit it with what the cluster allows"
    return f"waiting: {reason or 'not considered yet'}"


def _ending(job: SlurmJob) -> str:
    if job.signal:
        return f", signal {job.signal}"
    code = job.exit_code.partition(":")[0]
    return f", exit code {code}" if code.isdecimal() and int(code) else ""


def _numbers(tasks: str) -> list[int]:
    """Returns the numbers of a list such as 0,2-4."""
    ends = [[int(end) for end in part.split("-")] for part in tasks.split(",")]
    return [number for each in ends for number in range(each[0], each[-1] + 1)]
