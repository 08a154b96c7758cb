"""Dependencies between jobs on Kubernetes: a small pod waits first, then the job's own pods are created.

The pod is a replicated job of the same JobSet, on which the others depend (`dependsOn`), so that it needs no process
outside of the cluster and no GPU waits with it. An init container would hold the job's GPUs, and a submitter that
watches would end with the laptop that it runs on.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schedulers.errors import SchedulerError
from schedulers.jobset import names
from schedulers.jobset.options import JobSetOpts
from schedulers.jobset.pod import TERMINATION_LOG
from schedulers.jobset.restarts import RESTARTS, pod_failure_policy
from schedulers.predecessors import Predecessor, predecessors

WAITER = "torchx-after"  # name of the replicated job that waits
DEPENDS_ON_WAITER = {"dependsOn": [{"name": WAITER, "status": "Complete"}]}
PREDECESSORS = "torchx.pytorch.org/after"  # annotation of a JobSet: the jobs that it waits for
CANCELLED = "torchx.pytorch.org/cancelled"  # annotation of a JobSet suspended by `torchx cancel`
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
API_SERVER = "https://kubernetes.default.svc"
_PROGRAM = Path(__file__).with_name("wait_for_jobs.py").read_text()
_RESOURCES = {"limits": {"cpu": "500m", "memory": "256M"}, "requests": {"cpu": "50m", "memory": "64M"}}


def own_predecessors(opts: JobSetOpts) -> list[Predecessor]:
    """Returns the jobs that a job waits for.

    Raises:
        SchedulerError: A handle does not name a job in the same namespace.
    """
    found = predecessors("jobset", opts.after, opts.after_any)
    for one in found:
        context, namespace, _ = names.place_of(one.app_id) or (None, None, None)
        if (context, namespace) != (opts.context, opts.namespace):
            place = f"context {opts.context}, namespace {opts.namespace}" if opts.context else opts.namespace
            raise SchedulerError(f"{one.option}: must be a job in the namespace of this one ({place})")
    return found


def predecessors_of(jobset: Mapping[str, Any]) -> list[Predecessor]:
    """Returns the jobs that a JobSet waits for, or has waited for."""
    noted = jobset["metadata"].get("annotations", {}).get(PREDECESSORS, "[]")
    return [Predecessor(**one) for one in json.loads(noted)]


def annotation(found: list[Predecessor]) -> dict[str, str]:
    """Returns the annotation of a JobSet that waits for these jobs."""
    return {PREDECESSORS: json.dumps([vars(one) for one in found])} if found else {}


def waiter(found: list[Predecessor], pod: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the replicated job that waits.

    Args:
        found: The jobs to wait for.
        pod: The template of the job's own pods, for the image and the placement of the pod.
    """
    kept = ("restartPolicy", "serviceAccountName", "priorityClassName", "tolerations", "securityContext")
    spec = {key: value for key, value in pod["spec"].items() if key in (*kept, "imagePullSecrets")}
    own = pod["spec"]["containers"][0]
    container = {
        "name": WAITER,
        "image": own["image"],
        "command": ["python", "-c", _PROGRAM],
        "env": [
            {"name": RESTARTS, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.ATTEMPT}']"}}},
            *({"name": name, "value": value} for name, value in _variables(found).items()),
        ],
        "resources": _RESOURCES,
        **_limits_of(own.get("securityContext", {})),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    metadata = {**pod["metadata"], "labels": pod["metadata"]["labels"] | {names.OWN_ROLE_LABEL: WAITER}}
    job = {
        "completionMode": "Indexed",
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": 0,
        "podFailurePolicy": pod_failure_policy(WAITER),
        "template": {"metadata": metadata, "spec": {**spec, "containers": [container]}},
    }
    return {"name": WAITER, "replicas": 1, "template": {"spec": job}}


def _limits_of(security: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the restrictions of a container's security context, without its privileges."""
    limits = {key: value for key, value in security.items() if key not in ("privileged", "capabilities")}
    dropped = security.get("capabilities", {}).get("drop")
    limits |= {"capabilities": {"drop": dropped}} if dropped else {}
    return {"securityContext": limits} if limits else {}


def _variables(found: list[Predecessor]) -> dict[str, str]:
    return {
        "PREDECESSORS": json.dumps([vars(one) | {"path": _path(one)} for one in found]),
        "CANCELLED": CANCELLED,
        "API_SERVER": API_SERVER,
        "SERVICE_ACCOUNT": SERVICE_ACCOUNT,
        "LAST_WORDS": TERMINATION_LOG,
    }


def _path(one: Predecessor) -> str:
    place = names.place_of(one.app_id)
    assert place  # checked by `own_predecessors`
    _, namespace, name = place
    return f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.PLURAL}/{name}"
