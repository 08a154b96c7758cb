"""The end of a job as the command line shows it: its state, why, and the first error of the ranks."""

from collections.abc import Iterable
from dataclasses import replace

from torchx.specs import NONE, AppState, AppStatus, ReplicaStatus

from schedulers.first_error import error_message


class Ending(AppStatus):
    """The status of a job that has ended, which `torchx run` prints last."""

    def __repr__(self) -> str:
        """Returns the status in a few lines: TorchX's own prints every field of every replica, tracebacks escaped."""
        return "\n  ".join(filter(None, [f"the job has ended as {self.state.name}: {self.msg}", first_error(self)]))


def with_plain_error(status: AppStatus) -> AppStatus:
    """Returns a status with its first error as plain text, not as JSON."""
    return replace(status, structured_error_msg=first_error(status) or NONE)


def first_error(status: AppStatus) -> str:
    """Returns the first error of a job that failed, with its replica; empty if none is known."""
    if status.state != AppState.FAILED:
        return ""
    if status.structured_error_msg != NONE:
        return f"first error: {error_message(status.structured_error_msg)}"
    for replica in _failed(status):
        return f"first error: {replica.role}/{replica.id}: {error_message(replica.structured_error_msg)}"
    return ""


def _failed(status: AppStatus) -> Iterable[ReplicaStatus]:
    replicas = (replica for role in status.roles for replica in role.replicas)
    return (replica for replica in replicas if replica.structured_error_msg != NONE)
