"""Jobs of the scheduler `jobset` on the stand-in for a cluster, as tests see them."""

import json

from torchx.specs import ReplicaState

from trainer.core.progress import TrainingProgress


def state(cluster, handle):
    """The final state of a JobSet on the cluster; empty while it runs."""
    namespace, name = handle.rpartition("/")[2].split(":")[-2:]
    return cluster.get("JobSet", namespace, name).get("status", {}).get("terminalState", "")


def finish(cluster, handle):
    cluster.wait_for(lambda: state(cluster, handle))
    return handle


def running(cluster, count=1):
    phases = [pod["status"]["phase"] for pod in cluster.pods()]
    return phases.count("Running") == count


def replicas(answer):
    found = [replica for role in answer["roles"] for replica in role["replicas"]]
    return [replica | {"state": ReplicaState(replica["state"]).name} for replica in found]


def message(replica):
    return json.loads(replica["structured_error_msg"])["message"]


def line_of(step, loss):
    """The trainer's line of a report."""
    reported = TrainingProgress(step=step, last_step=2000, loss=loss, samples_per_second=1234, end=90, time=0)
    return reported.line("(617 per rank)  ")
