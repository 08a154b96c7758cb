"""The pod template of a role's replicas."""

from typing import Any

import yaml
from torchx.specs import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount, macros
from torchx.specs.overlays import JOIN, apply_overlay, get_overlay

from schedulers.contract import RANK0_HOST
from schedulers.errors import SchedulerError
from schedulers.jobset.container import REPLICA_MARK, filled, replica_container
from schedulers.jobset.job import Job
from schedulers.jobset.names import dns_name
from schedulers.jobset.options import JobSetOpts

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def template(job: Job, role: Role) -> dict[str, Any]:
    """Returns the pod template of all replicas of a role, with the overlays of the app and the role merged into it.

    Raises:
        SchedulerError: An option or an overlay cannot be used.
    """
    name, opts = dns_name(role.name), job.opts
    values = macros.Values(img_root="", app_id=job.name, replica_id=REPLICA_MARK, rank0_env=RANK0_HOST)
    volumes, mounts = _volumes(role, opts)
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": opts.termination_grace_seconds,
        "serviceAccountName": opts.service_account,
        "priorityClassName": opts.priority_class,
        "nodeSelector": _node_selector(role.resource, opts),
        "tolerations": [_toleration(taint) for taint in opts.tolerations or ()],
        "securityContext": _security(opts),
        "imagePullSecrets": [{"name": secret} for secret in opts.image_pull_secrets or ()],
        "containers": [replica_container(job, values.apply(role), mounts)],
        "volumes": volumes,
    }
    pod = {
        "metadata": {
            "labels": (opts.labels or {})
            | {"app.kubernetes.io/instance": job.name, "torchx.pytorch.org/role-name": name},
            # A sidecar of Istio would keep the pod running for ever.
            "annotations": {"sidecar.istio.io/inject": "false"} | (opts.annotations or {}),
        },
        "spec": filled(spec),
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


def _security(opts: JobSetOpts) -> dict[str, Any]:
    """Returns the user and the groups of the pod's processes, and of its volumes."""
    ids = {"runAsUser": opts.run_as_user, "runAsGroup": opts.run_as_group, "fsGroup": opts.fs_group}
    given = {name: number for name, number in ids.items() if number is not None}
    return given | ({"runAsNonRoot": True} if opts.run_as_user else {})


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
    shared_memory = filled({"medium": "Memory", "sizeLimit": opts.shm_size})
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": shared_memory}]
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, mount in enumerate(role.mounts):
        volumes.append({"name": f"mount-{number}", **_source(mount)})
        mounts.append(filled({"name": f"mount-{number}", "mountPath": mount.dst_path, "readOnly": _read_only(mount)}))
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
