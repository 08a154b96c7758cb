"""The state of a local job and of its replicas, from its record, in TorchX's terms."""

import re
from pathlib import Path

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import NONE, AppState, ReplicaStatus, Resource, Role, RoleStatus

from schedulers.first_error import first_error, structured, tail
from schedulers.local.record import STARTING_AGAIN, Job, Process, Progress, Record, Replica, being_cancelled
from schedulers.predecessors import ENDED
from trainer.core.outcome import is_final
from trainer.core.secrets import without_secrets


def describe(record: Record) -> DescribeAppResponse:
    """Returns the whole status of a job.

    Raises:
        FileNotFoundError: The record has been removed meanwhile.
    """
    job, progress = record.job(), record.progress()
    return DescribeAppResponse(
        app_id=job.app_id,
        state=AppState[progress.state],
        num_restarts=progress.restarts,
        msg=_message(record, job, progress) or NONE,
        # The line that the trainer has left says better why a job ended than the exit of its ranks.
        structured_error_msg=NONE if is_final(record.outcome()) else _first_error(job, progress),
        ui_url=f"file://{job.log_dir}",
        roles=[Role(**role | {"resource": Resource(**role["resource"])}) for role in job.roles],
        roles_statuses=_role_statuses(job, progress),
    )


def _message(record: Record, job: Job, progress: Progress) -> str:
    # The supervisor notices a moment later that it is to cancel the job, and may be restarting it then.
    if record.cancel_file.exists() and progress.state not in ENDED:
        return being_cancelled(job)
    if progress.message or progress.state != "RUNNING":
        return progress.message
    training = record.training()
    return training.in_words() if training else record.how_far()


def role_fields(role: Role) -> dict[str, object]:
    """Returns the fields of a role that a record keeps, as plain data."""
    kept = ("name", "image", "entrypoint", "args", "env", "num_replicas", "max_retries", "port_map", "metadata")
    resource = {name: getattr(role.resource, name) for name in ("cpu", "gpu", "memMB")}
    return {name: getattr(role, name) for name in kept} | {"resource": resource}


def _role_statuses(job: Job, progress: Progress) -> list[RoleStatus]:
    roles = {role["name"]: RoleStatus(role["name"], []) for role in job.roles}
    for replica, process in zip(job.replicas, progress.processes, strict=False):
        state = _replica_state(process, progress.state)
        status = ReplicaStatus(replica.number, state, replica.role, "localhost", _error(replica))
        roles[replica.role].replicas.append(status)
    return list(roles.values())


def _replica_state(process: Process, job_state: str) -> AppState:
    if process.exit_code == 0:
        return AppState.SUCCEEDED
    if process.exit_code is None:
        return AppState.UNKNOWN if job_state in ENDED else AppState.RUNNING
    return AppState.CANCELLED if job_state == "CANCELLED" else AppState.FAILED


def _error(replica: Replica) -> str:
    return without_secrets(replica.error_file.read_text()) if replica.error_file.exists() else NONE


def _first_error(job: Job, progress: Progress) -> str:
    """Returns the error of the replica that failed first, if the job has failed."""
    if progress.state != "FAILED":
        return NONE
    ends = zip(job.replicas, progress.processes, strict=False)
    failed = [(process.ended, replica, process.exit_code) for replica, process in ends if process.exit_code]
    if not failed:
        return NONE
    ended, replica, exit_code = min(failed, key=lambda each: each[0])
    error = first_error(_last_attempt(tail(Path(replica.stderr))), replica.error_file)
    return structured(f"{replica.name}, {error}", exit_code, ended) if error else NONE


def _last_attempt(log: str) -> str:
    """Returns what follows the last note of the supervisor before an attempt."""
    return re.split(rf"^torchx: (?:waits for .*|.*; {STARTING_AGAIN}.*)\n", log, flags=re.MULTILINE)[-1]
