"""Logs of replicas; a followed log continues across all pods of its replica."""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from torchx.specs import is_terminal

from schedulers.jobset import names
from schedulers.jobset.cluster import Namespace
from schedulers.jobset.names import INDEX
from schedulers.jobset.status import (
    Object,
    app_state,
    container_name,
    container_state,
    newest_pods,
    newest_warning,
    pod_reason,
    suspension,
)
from trainer.core.progress import TrainingProgress, of_log

logger = logging.getLogger(__name__)

POLL_SECONDS = 1
# Where `torchx status` looks for the progress of a job: so many logs, and so many lines of each.
LOGS_READ, LAST_LINES = 8, 200
NO_LOG, GONE = "%s has no log yet: %s", "its pod is gone"


@dataclass(frozen=True)
class Replica:
    """A replica of a job, by the names of its JobSet and its role; other kinds of jobs override the methods."""

    name: str
    role: str
    number: int

    def __str__(self) -> str:
        return f"{self.role}/{self.number}"

    def job(self, cluster: Any) -> Object | None:
        """Returns the job; None if it is gone."""
        return cluster.jobset(self.name)

    def has_ended(self, job: Object) -> bool:
        """Returns whether the job has ended."""
        return is_terminal(app_state(job))

    def waits(self, job: Object) -> str:
        """Returns what the job waits for before it may have pods; empty if it may."""
        return suspension(job)

    def warnings(self, cluster: Any, job: Object) -> Iterable[Object]:
        """Returns what the cluster reports about a job that lacks pods."""
        return cluster.warnings(job)

    def pod(self, cluster: Any) -> Object | None:
        """Returns the newest pod of the replica; None without pods."""
        labels = {names.JOBSET_LABEL: self.name, names.ROLE_LABEL: self.role, INDEX: str(self.number)}
        return newest_pods(cluster.pods(labels)).get((self.role, self.number))


def read(cluster: Namespace, replica: Replica, since: datetime | None, until: datetime | None) -> Iterator[str]:
    """Yields the lines of the replica's last attempt so far."""
    pod = replica.pod(cluster)
    if pod and _started(pod):
        yield from (text for _, text in _lines(cluster, pod, since, until))
    elif job := replica.job(cluster):
        logger.warning(NO_LOG, replica, _reason(cluster, replica, job, pod))


def follow(cluster: Namespace, replica: Replica, since: datetime | None, until: datetime | None) -> Iterator[str]:
    """Yields the lines of the replica as they come, through restarts and cut connections, until the job ends.

    While there are no lines, it logs why, each reason once.
    """
    done, last, told = set(), None, ""
    while True:
        job = replica.job(cluster)
        pod = replica.pod(cluster)
        ended = pod and pod["metadata"]["uid"] in done
        if pod and not ended and _started(pod):
            told = ""
            for stamp, text in _lines(cluster, pod, since, until, last, follow=True):
                last = stamp or last
                yield text
            if pod["status"].get("phase") in ("Succeeded", "Failed"):
                done.add(pod["metadata"]["uid"])
        elif job is None or replica.has_ended(job):
            if job and pod is None and last is None:
                logger.warning(NO_LOG, replica, GONE)
            return
        elif (reason := replica.waits(job) if ended else _reason(cluster, replica, job, pod)) and reason != told:
            logger.warning(NO_LOG, replica, reason)
            told = reason
        time.sleep(POLL_SECONDS)  # also after a log: a finished one ends at once, even before its pod shows the end


def progress(cluster: Namespace, pods: Iterable[Object]) -> TrainingProgress | None:
    """Returns how far a job is by the end of a log; None if none shows it. Rank 0 may be in any replica."""
    running = [pod for _, pod in sorted(newest_pods(pods).items()) if pod["status"].get("phase") == "Running"]
    for pod in running[:LOGS_READ]:
        lines = map(_split, cluster.end_of_log(pod["metadata"]["name"], container_name(pod), LAST_LINES))
        if found := of_log((stamp.timestamp(), text) for stamp, text in lines if stamp):
            return found
    return None


def _reason(cluster: Namespace, replica: Replica, job: Object, pod: Object | None) -> str:
    """Returns why a replica has no log."""
    if pod is None and replica.has_ended(job):
        return GONE
    waits = replica.waits(job)
    refused = "" if pod or waits else newest_warning(replica.warnings(cluster, job))
    return waits or refused or (pod_reason(pod) if pod else "") or "its pod is being made"


def _started(pod: Object) -> bool:
    """Returns whether the pod's container has ever run: the server refuses to read a log before."""
    state = container_state(pod)
    return bool(state) and "waiting" not in state


def _lines(
    cluster: Namespace,
    pod: Object,
    since: datetime | None,
    until: datetime | None,
    last: datetime | None = None,
    follow: bool = False,
) -> Iterator[tuple[datetime | None, str]]:
    """Yields the lines of a pod with their times, between two times and after the `last` line read."""
    for line in cluster.log(pod["metadata"]["name"], container_name(pod), last or since, follow):
        stamp, text = _split(line)
        if until and stamp and stamp > until.astimezone(UTC):
            return
        early = stamp and since and stamp < since.astimezone(UTC)
        if not early and not (stamp and last and stamp <= last):
            yield stamp, text


def _split(line: str) -> tuple[datetime | None, str]:
    """Returns the time of a line and its text; messages of the server itself have no time."""
    stamp, _, text = line.partition(" ")
    try:
        return datetime.fromisoformat(stamp), text
    except ValueError:
        return None, line
