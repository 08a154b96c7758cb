"""The pod template of a role's replicas."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torchx.settings import ENV_TORCHX_IMAGE, ENV_TORCHX_JOB_ID
from torchx.specs import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount, macros
from torchx.specs.overlays import JOIN, apply_overlay, get_overlay

from schedulers.contract import RANK0_HOST, SHELL_CONTRACT, assignments
from schedulers.errors import SchedulerError
from schedulers.jobset.names import dns_name
from schedulers.jobset.options import JobSetOpts
from trainer.core.outcome import OUTCOME_VARIABLE

INDEX = "batch.kubernetes.io/job-completion-index"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
REPLICA_ID = "TORCHX_REPLICA_ID"
REPLICAS = "TORCHX_REPLICAS"
TERMINATION_LOG = "/dev/termination-log"
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

# Runs a replica in its container.
SUPERVISOR = (
    SHELL_CONTRACT
    + assignments(outcome_file=f"${OUTCOME_VARIABLE}", rank0_host=f"${RANK0_HOST}", replicas=f"${REPLICAS}")
    + Path(__file__).with_name("supervisor.sh").read_text()
)

_REPLICA_MARK = "\0replica\0"


@dataclass(frozen=True)
class Job:
    """An app with its options, and the name and the handle under which it is submitted."""

    app: AppDef
    opts: JobSetOpts
    name: str
    handle: str

    @property
    def rank0_host(self) -> str:
        """The host name of replica 0 of the first role in the headless service that JobSet creates."""
        return f"{self.name}-{dns_name(self.app.roles[0].name)}-0-0.{self.name}"


def template(job: Job, role: Role) -> dict[str, Any]:
    """Returns the pod template of all replicas of a role, with the overlays of the app and the role merged into it.

    Raises:
        SchedulerError: An option or an overlay cannot be used.
    """
    name, opts = dns_name(role.name), job.opts
    values = macros.Values(img_root="", app_id=job.name, replica_id=_REPLICA_MARK, rank0_env=RANK0_HOST)
    volumes, mounts = _volumes(role, opts)
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": opts.termination_grace_seconds,
        "serviceAccountName": opts.service_account,
        "priorityClassName": opts.priority_class,
        "nodeSelector": _node_selector(role.resource, opts),
        "tolerations": [_toleration(taint) for taint in opts.tolerations or ()],
        "imagePullSecrets": [{"name": secret} for secret in opts.image_pull_secrets or ()],
        "containers": [_container(job, values.apply(role), mounts)],
        "volumes": volumes,
    }
    pod = {
        "metadata": {
            "labels": {"app.kubernetes.io/instance": job.name, "torchx.pytorch.org/role-name": name},
            # A sidecar of Istio would keep the pod running for ever.
            "annotations": {"sidecar.istio.io/inject": "false"},
        },
        "spec": _filled(spec),
    }
    for target in (job.app, role):
        _merge_overlay(pod, target)
    return pod


def _merge_overlay(pod: dict[str, Any], target: AppDef | Role) -> None:
    try:
        overlay = get_overlay(target, "kubernetes", "V1Pod")
        _join_containers(pod["spec"]["containers"], overlay.get("spec", {}))
        apply_overlay(pod, overlay)
    except (OSError, AttributeError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        file = target.metadata["kubernetes"]
        raise SchedulerError(f"--metadata kubernetes={file}: must be a file with a pod: {error}") from error


def _join_containers(containers: list[dict[str, Any]], overlay: dict[str, Any]) -> None:
    """Merges containers with those of the same name all the way down, and takes them out of the overlay.

    TorchX's own join replaces whole fields: an overlay that sets one variable would take all others away.
    """
    ours = {container["name"]: container for container in containers}
    for container in overlay.pop(JOIN("containers", on="name"), ()):
        if container["name"] in ours:
            apply_overlay(ours[container["name"]], container)
        else:
            containers.append(container)


def _container(job: Job, role: Role, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    name, opts = dns_name(role.name), job.opts
    # The kubelet replaces $(NAME) only by what stands before it in the list.
    index = {"name": REPLICA_ID, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}}
    privileged = any(isinstance(mount, DeviceMount) for mount in role.mounts)
    return _filled(
        {
            "name": name,
            "image": role.image,
            "command": ["sh", "-c", _for_kubelet(SUPERVISOR), name],
            "args": [_for_kubelet(word) for word in (role.entrypoint, *role.args)],
            "env": [index, *({"name": key, "value": _for_kubelet(value)} for key, value in _env(job, role).items())],
            "envFrom": [{"secretRef": {"name": secret}} for secret in opts.env_secrets or ()],
            "ports": [{"name": port, "containerPort": number} for port, number in role.port_map.items()],
            "resources": _resources(role.resource, opts),
            "volumeMounts": mounts,
            "securityContext": {"privileged": True} if privileged else {},
            "terminationMessagePath": TERMINATION_LOG,
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
    )


def _env(job: Job, role: Role) -> dict[str, str]:
    return {
        RANK0_HOST: job.rank0_host,
        REPLICAS: str(sum(each.num_replicas for each in job.app.roles)),
        OUTCOME_VARIABLE: TERMINATION_LOG,
        ENV_TORCHX_IMAGE: role.image,
        **role.env,
        ENV_TORCHX_JOB_ID: job.handle,
    }


def _for_kubelet(text: str) -> str:
    """Doubles each `$` that the kubelet would expand, and inserts the variable with the replica's number."""
    return re.sub(r"\$(?=[$(])", "$$", text).replace(_REPLICA_MARK, f"$({REPLICA_ID})")


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
    devices = {name: str(count) for name, count in resource.devices.items()}
    if resource.gpu > 0:
        devices["nvidia.com/gpu"] = str(resource.gpu)
    return _filled({"limits": limits | devices, "requests": requests | devices})


def _node_selector(resource: Resource, opts: JobSetOpts) -> dict[str, str]:
    wanted = resource.capabilities.get(INSTANCE_TYPE)
    return ({INSTANCE_TYPE: wanted} if wanted else {}) | (opts.node_selector or {})


def _toleration(taint: str) -> dict[str, str]:
    key, *rest = taint.split(":")
    effect = rest.pop() if rest and rest[-1] in TAINT_EFFECTS else None
    if not key or len(rest) > 1:
        allowed = f"KEY[:VALUE][:EFFECT] with an effect of {', '.join(TAINT_EFFECTS)}"
        raise SchedulerError(f"-cfg tolerations={taint}: must be {allowed}")
    match = {"operator": "Equal", "value": rest[0]} if rest else {"operator": "Exists"}
    return {"key": key, **match, **({"effect": effect} if effect else {})}


def _volumes(role: Role, opts: JobSetOpts) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the pod's volumes and their mounts."""
    shared_memory = _filled({"medium": "Memory", "sizeLimit": opts.shm_size})
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": shared_memory}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, mount in enumerate(role.mounts):
        volumes.append({"name": f"mount-{number}", **_source(mount)})
        mounts.append(_filled({"name": f"mount-{number}", "mountPath": mount.dst_path, "readOnly": _read_only(mount)}))
    for number, (secret, path) in enumerate((opts.secrets or {}).items()):
        volumes.append({"name": f"secret-{number}", "secret": {"secretName": secret}})
        mounts.append({"name": f"secret-{number}", "mountPath": path, "readOnly": True})
    return volumes, mounts


def _source(mount: BindMount | VolumeMount | DeviceMount) -> dict[str, Any]:
    if isinstance(mount, VolumeMount):
        return {"persistentVolumeClaim": {"claimName": mount.src}}
    return {"hostPath": {"path": mount.src_path}}


def _read_only(mount: BindMount | VolumeMount | DeviceMount) -> bool:
    return "w" not in mount.permissions if isinstance(mount, DeviceMount) else mount.read_only


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in (None, [], {}, False)}
