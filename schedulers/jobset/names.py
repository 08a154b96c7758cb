"""Names and labels that Kubernetes accepts."""

import re

from torchx.schedulers.ids import random_id
from torchx.specs import AppDef

from schedulers.errors import SchedulerError

INDEX = "batch.kubernetes.io/job-completion-index"
ATTEMPT = "jobset.sigs.k8s.io/restart-attempt"

OLDEST_JOBSET = "0.10.1"
"""The first JobSet whose Helm chart has what tells wrong input from other failures."""

# The longest name of a pod that JobSet admits; a pod's own name ends in `-` and five characters.
LONGEST_NAME = 63


def unique_name(app: AppDef) -> str:
    """Returns a name for the JobSet that begins with the app's and leaves room for the names of its pods.

    Raises:
        SchedulerError: The role names are too long.
    """
    longest = max(len(f"-{dns_name(role.name)}-0-{role.num_replicas - 1}-abcde") for role in app.roles)
    suffix = f"-{random_id()}"
    room = LONGEST_NAME - longest - len(suffix)
    if room < 1:
        roles = ", ".join(role.name for role in app.roles)
        raise SchedulerError(f"roles {roles}: names must be {1 - room} characters shorter for Kubernetes")
    return dns_name(app.name)[:room].rstrip("-") + suffix


def dns_name(name: str) -> str:
    """Returns a valid host name: lower case letters, digits and `-`, a letter first."""
    clean = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return clean if clean[:1].isalpha() else f"job-{clean}".rstrip("-")


def label(value: str) -> str:
    """Returns a valid value of a label."""
    return re.sub(r"[^A-Za-z0-9._-]", ".", value)[:63].strip("-_.")
