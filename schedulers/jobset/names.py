"""Names of a job on a cluster: JobSet's API, labels of pods, and the names that Kubernetes accepts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from torchx.schedulers.ids import random_id
from torchx.specs import AppDef
from torchx.util.strings import normalize_str

from schedulers.errors import SchedulerError
from schedulers.jobset.options import JobSetOpts

GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
JOBSET_LABEL = "jobset.sigs.k8s.io/jobset-name"
OWN_ROLE_LABEL = "torchx.pytorch.org/role-name"
ROLE_LABEL = "jobset.sigs.k8s.io/replicatedjob-name"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUEUE_PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
MANAGED_BY = {"app.kubernetes.io/managed-by": "torchx.pytorch.org"}
REPLICA_LABEL = "torchx.pytorch.org/replica-id"  # of pods of a Volcano Job
INDEX = "batch.kubernetes.io/job-completion-index"
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"

# The longest name of a pod that JobSet admits; a pod's own name ends in `-` and five characters.
LONGEST_NAME = 63


@dataclass(frozen=True)
class Submission:
    """An app with its options, and the name and the handle under which it is submitted."""

    app: AppDef
    opts: JobSetOpts
    name: str
    handle: str

    @property
    def rank0_host(self) -> str:
        """The host name of replica 0 of the first role in the headless service that JobSet creates."""
        return f"{self.name}-{dns_name(self.app.roles[0].name)}-0-0.{self.name}"

    @property
    def max_retries(self) -> int:
        """The retries of the job, which restarts as a whole."""
        return max(role.max_retries for role in self.app.roles)


def unique_name(app: AppDef, beside: Sequence[str] = ()) -> str:
    """Returns a name for the JobSet that begins with the app's and leaves room for the names of its pods.

    Args:
        app: The app.
        beside: Number of replicated jobs of one pod besides those of the roles.

    Raises:
        SchedulerError: The role names are too long.
    """
    pods = {dns_name(role.name): role.num_replicas for role in app.roles} | dict.fromkeys(beside, 1)
    longest = max(len(f"-{name}-0-{replicas - 1}-abcde") for name, replicas in pods.items())
    suffix = f"-{random_id()}"
    room = LONGEST_NAME - longest - len(suffix)
    if room < 1:
        roles = ", ".join(role.name for role in app.roles)
        raise SchedulerError(f"roles {roles}: names must be {1 - room} characters shorter for Kubernetes")
    return dns_name(app.name)[:room].rstrip("-") + suffix


def objects_of(jobset: Mapping[str, Any]) -> list[str]:
    """Returns the names of a JobSet and of its Jobs."""
    name = jobset["metadata"]["name"]
    return [name, *(f"{name}-{job['name']}-0" for job in jobset["spec"]["replicatedJobs"])]


def place_of(app_id: str) -> tuple[str | None, str, str] | None:
    """Returns the context, the namespace and the name of a job; None if the id is malformed."""
    parts = app_id.split(":")
    if len(parts) not in (2, 3) or not all(parts):
        return None
    *context, namespace, name = parts
    return unquote(context[0]) if context else None, namespace, name


def dns_name(name: str) -> str:
    """Returns a valid host name: lower case letters, digits and `-`, a letter first."""
    clean = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return clean if clean[:1].isalpha() else f"job-{clean}".rstrip("-")


def label(value: str) -> str:
    """Returns a valid value of a label."""
    return re.sub(r"[^A-Za-z0-9._-]", ".", value)[:63].strip("-_.")


def task_of(labels: Mapping[str, str]) -> str:
    """Returns the name of the task of a Volcano Job, and so of its container, by the labels of its pod."""
    return normalize_str(f"{labels.get(OWN_ROLE_LABEL, '')}-{labels.get(REPLICA_LABEL, '')}")


def labels_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Returns the labels of a JobSet or a pod."""
    return resource["metadata"].get("labels", {})
