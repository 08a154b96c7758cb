"""Renders an app as a JobSet."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from torchx.specs import Role

from schedulers.code import workspace
from schedulers.code.archive import UNPACKER
from schedulers.jobset import after, pod
from schedulers.jobset.names import (
    GROUP,
    MANAGED_BY,
    QUEUE_LABEL,
    QUEUE_PRIORITY_LABEL,
    VERSION,
    Submission,
    dns_name,
    label,
)
from schedulers.jobset.restarts import failure_policy, pod_failure_policy
from schedulers.predecessors import Predecessor


@dataclass
class JobSetRequest:
    """A JobSet to be created, the context of its cluster, and the code that is sent before."""

    context: str | None
    resource: dict[str, Any]
    images_to_push: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return yaml.dump(self.resource, Dumper=_Dumper, sort_keys=False, width=120)


class _Dumper(yaml.SafeDumper):
    """Writes YAML with scripts as blocks."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def jobset(job: Submission, shipments: Iterable[Any] = ()) -> dict[str, Any]:
    """Returns the JobSet of a job: one Indexed Job for each role, one pod for each replica.

    Args:
        job: The job.
        shipments: The code that is shipped for it.
    """
    opts, roles = job.opts, job.app.roles
    templates = [pod.template(job, role) for role in roles]
    workspace.mount_archives(shipments, templates)
    waits_for = after.own_predecessors(opts)
    jobs = [*map(_replicated_job, roles, templates)]
    if waits_for:
        jobs = [after.waiter(waits_for, templates[0]), *(one | after.DEPENDS_ON_WAITER for one in jobs)]
    spec: dict[str, Any] = {
        "suspend": bool(opts.queue),
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": False},
        "failurePolicy": failure_policy(job.max_retries),
        "replicatedJobs": jobs,
    }
    if opts.ttl_seconds is not None:
        spec["ttlSecondsAfterFinished"] = opts.ttl_seconds
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "JobSet",
        "metadata": {
            "name": job.name,
            "namespace": opts.namespace,
            "labels": _labels(job),
            **_annotations(job, waits_for, shipments),
        },
        "spec": spec,
    }


def _labels(job: Submission) -> dict[str, str]:
    queue = {QUEUE_LABEL: job.opts.queue, QUEUE_PRIORITY_LABEL: job.opts.queue_priority}
    named = (job.opts.labels or {}) | MANAGED_BY | {"app.kubernetes.io/name": label(job.app.name)}
    return named | {key: value for key, value in queue.items() if value}


def _annotations(job: Submission, waits_for: list[Predecessor], shipments: Iterable[Any]) -> dict[str, dict[str, str]]:
    noted = (job.opts.annotations or {}) | after.annotation(waits_for) | workspace.annotation(shipments)
    return {"annotations": noted} if noted else {}


def _replicated_job(role: Role, template: dict[str, Any]) -> dict[str, Any]:
    name = dns_name(role.name)
    spec = {
        "completionMode": "Indexed",
        "completions": role.num_replicas,
        "parallelism": role.num_replicas,
        "backoffLimit": 0,
        "podFailurePolicy": pod_failure_policy(name, *(one["name"] for one in _unpackers(template))),
        "template": template,
    }
    return {"name": name, "replicas": 1, "template": {"spec": spec}}


def _unpackers(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in template["spec"].get("initContainers", ()) if one["name"] == UNPACKER]


def roles(resource: Mapping[str, Any]) -> list[Role]:
    """Returns the roles of a JobSet with their names, images and numbers of replicas."""
    jobs = [job for job in resource["spec"]["replicatedJobs"] if job["name"] != after.WAITER]
    specs = {job["name"]: job["template"]["spec"] for job in jobs}
    return [
        Role(
            name=name,
            image=spec["template"]["spec"]["containers"][0]["image"],
            num_replicas=spec.get("completions", 1),
        )
        for name, spec in specs.items()
    ]
