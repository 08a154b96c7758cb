"""The replicas of a Volcano Job, whose logs are read as those of `jobset` are."""

from collections.abc import Iterable
from typing import Any

from torchx.specs import is_terminal
from torchx.util.strings import normalize_str

from schedulers.jobset.log import Replica
from schedulers.jobset.names import REPLICA_LABEL
from schedulers.jobset.status import Object
from schedulers.kubernetes.status import INSTANCE_LABEL, app_state, newest_pods


class VolcanoReplica(Replica):
    """A replica of a Volcano Job, whose pods are found by the labels that TorchX gives them."""

    def job(self, cluster: Any) -> Object | None:
        """Returns the job; None if it is gone."""
        return cluster.job(self.name)

    def has_ended(self, job: Object) -> bool:
        """Returns whether the job has ended."""
        return is_terminal(app_state(job))

    def waits(self, job: Object) -> str:
        """Returns nothing: Volcano makes the pods of a job that waits, or reports why it does not."""
        return ""

    def warnings(self, cluster: Any, job: Object) -> Iterable[Object]:
        """Returns what the cluster reports about a job that lacks pods."""
        return cluster.events([self.name])

    def pod(self, cluster: Any) -> Object | None:
        """Returns the newest pod of the replica; None without pods."""
        pods = cluster.pods({INSTANCE_LABEL: self.name, REPLICA_LABEL: str(self.number)})
        return newest_pods(pods).get(normalize_str(f"{self.role}-{self.number}"))
