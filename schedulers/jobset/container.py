"""The container of a role's replicas."""

import re
from typing import Any

from torchx.settings import ENV_TORCHX_IMAGE, ENV_TORCHX_JOB_ID
from torchx.specs import DeviceMount, Resource, Role

from schedulers.contract import RANK0_HOST
from schedulers.jobset.job import Job
from schedulers.jobset.names import ATTEMPT, INDEX, dns_name
from schedulers.jobset.options import JobSetOpts
from schedulers.jobset.supervisor import REPLICAS, RESTARTS, supervisor
from trainer.core.outcome import OUTCOME_VARIABLE

REPLICA_ID = "TORCHX_REPLICA_ID"
TERMINATION_LOG = "/dev/termination-log"

# Stands in a role's arguments for the replica's number, which only the kubelet knows.
REPLICA_MARK = "\0replica\0"


def replica_container(job: Job, role: Role, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the container of a role's replicas, in which the supervisor runs the role's command."""
    name, opts = dns_name(role.name), job.opts
    # The kubelet replaces $(NAME) only by what stands before it in the list.
    own = [_own(REPLICA_ID, "annotations", INDEX), _own(RESTARTS, "labels", ATTEMPT)]
    script = supervisor(opts, job.max_retries)
    return filled(
        {
            "name": name,
            "image": role.image,
            "command": ["sh", "-c", _for_kubelet(script), name],
            "args": [_for_kubelet(word) for word in (role.entrypoint, *role.args)],
            "env": [*own, *_secret_keys(opts), *_env(job, role)],
            "envFrom": [{"secretRef": {"name": secret}} for secret in opts.env_secrets or ()],
            "ports": [{"name": port, "containerPort": number} for port, number in role.port_map.items()],
            "resources": _resources(role.resource, opts),
            "volumeMounts": mounts,
            "securityContext": _security(role, opts),
            "terminationMessagePath": TERMINATION_LOG,
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    )


def _own(name: str, kind: str, key: str) -> dict[str, Any]:
    """Returns a variable with the value of a label or an annotation of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{kind}['{key}']"}}}


def _secret_keys(opts: JobSetOpts) -> list[dict[str, Any]]:
    """Returns the variables that have the value of one key of a Secret."""
    named = [(name, *place.split("/", 1)) for name, place in (opts.env_secret_keys or {}).items()]
    return [{"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for name, secret, key in named]


def _env(job: Job, role: Role) -> list[dict[str, str]]:
    values = {
        RANK0_HOST: job.rank0_host,
        REPLICAS: str(sum(each.num_replicas for each in job.app.roles)),
        OUTCOME_VARIABLE: TERMINATION_LOG,
        ENV_TORCHX_IMAGE: role.image,
        **role.env,
        ENV_TORCHX_JOB_ID: job.handle,
    }
    return [{"name": name, "value": _for_kubelet(value)} for name, value in values.items()]


def _for_kubelet(text: str) -> str:
    """Doubles each `$` that the kubelet would expand, and inserts the variable with the replica's number."""
    return re.sub(r"\$(?=[$(])", "$$", text).replace(REPLICA_MARK, f"$({REPLICA_ID})")


def _resources(resource: Resource, opts: JobSetOpts) -> dict[str, dict[str, str]]:
    """Returns the role's resources as limits, and lower requests: a whole node is shared with Kubernetes itself."""
    limits, requests = {}, {}
    if resource.cpu > 0:
        millicpu = int(resource.cpu * 1000)
        limits["cpu"] = f"{millicpu}m"
        requests["cpu"] = f"{max(millicpu - opts.reserved_millicpu, millicpu // 2)}m"
    if resource.memMB > 0:
        limits["memory"] = f"{resource.memMB}M"
        requests["memory"] = f"{max(resource.memMB - opts.reserved_memmb, resource.memMB // 2)}M"
    devices = {name: str(count) for name, count in resource.devices.items()} | (opts.devices or {})
    if resource.gpu > 0:
        devices["nvidia.com/gpu"] = str(resource.gpu)
    return filled({"limits": limits | devices, "requests": requests | devices})


def _security(role: Role, opts: JobSetOpts) -> dict[str, Any]:
    """Returns what the container may do; a device of the node takes all rights."""
    privileged = any(isinstance(mount, DeviceMount) for mount in role.mounts)
    return filled({"privileged": privileged, "capabilities": {"add": ["IPC_LOCK"]} if opts.ipc_lock else {}})


def filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in (None, [], {}, False)}
