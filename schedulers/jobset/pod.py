"""The pods of a role: their template, and the container that runs a replica."""

import re
from typing import Any

import yaml
from torchx.settings import ENV_TORCHX_IMAGE, ENV_TORCHX_JOB_ID
from torchx.specs import AppDef, BindMount, DeviceMount, Resource, Role, VolumeMount, macros
from torchx.specs.overlays import JOIN, apply_overlay, get_overlay

from schedulers.contract import RANK0_HOST
from schedulers.errors import SchedulerError
from schedulers.jobset.names import ATTEMPT, INDEX, OWN_ROLE_LABEL, Submission, dns_name
from schedulers.jobset.options import JobSetOpts
from schedulers.jobset.restarts import REPLICAS, RESTARTS, supervisor
from trainer.core.outcome import OUTCOME_VARIABLE

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
TAINT_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
REPLICA_ID = "TORCHX_REPLICA_ID"
TERMINATION_LOG = "/dev/termination-log"

# Placeholder in a role's arguments for the replica's number, which only the kubelet knows.
REPLICA_MARK = "\0replica\0"


def template(job: Submission, role: Role) -> dict[str, Any]:
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
        "securityContext": _pod_security(opts),
        "imagePullSecrets": [{"name": secret} for secret in opts.image_pull_secrets or ()],
        "containers": [_replica_container(job, values.apply(role), mounts)],
        "volumes": volumes,
    }
    pod = {
        "metadata": {
            "labels": (opts.labels or {}) | {"app.kubernetes.io/instance": job.name, OWN_ROLE_LABEL: name},
            # A sidecar of Istio would keep the pod running forever.
            "annotations": {"sidecar.istio.io/inject": "false"} | (opts.annotations or {}),
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
    """Merges containers recursively with those of the same name, and removes them from the overlay.

    TorchX's own merge replaces whole fields: an overlay that sets one variable would remove all others.
    """
    ours = {container["name"]: container for container in containers}
    for container in overlay.pop(JOIN("containers", on="name"), ()):
        if container["name"] in ours:
            apply_overlay(ours[container["name"]], container)
        else:
            containers.append(container)


def _pod_security(opts: JobSetOpts) -> dict[str, Any]:
    """Returns the user and the groups of the pod's processes, and of its volumes."""
    ids = {"runAsUser": opts.run_as_user, "runAsGroup": opts.run_as_group, "fsGroup": opts.fs_group}
    given = {name: number for name, number in ids.items() if number is not None}
    seccomp = {"seccompProfile": {"type": "RuntimeDefault"}} if opts.restricted else {}
    return given | ({"runAsNonRoot": True} if opts.run_as_user or opts.restricted else {}) | seccomp


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


def _replica_container(job: Submission, role: Role, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the container of a role's replicas, in which the supervisor runs the role's command."""
    name, opts = dns_name(role.name), job.opts
    # The kubelet replaces $(NAME) only by variables that come earlier in the list.
    own = [_own(REPLICA_ID, "annotations", INDEX), _own(RESTARTS, "labels", ATTEMPT)]
    script = supervisor(opts, job.max_retries)
    return _filled(
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
            "securityContext": _container_security(role, opts),
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


def _env(job: Submission, role: Role) -> list[dict[str, str]]:
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
    return _filled({"limits": limits | devices, "requests": requests | devices})


def _container_security(role: Role, opts: JobSetOpts) -> dict[str, Any]:
    """Returns the security context of the container; mounting a device of the node needs a privileged container.

    Raises:
        SchedulerError: A mount needs privileges that a restricted pod must not have.
    """
    if opts.restricted:
        for mount in role.mounts:
            if not isinstance(mount, VolumeMount):
                raise SchedulerError(f"--mounts {mount.dst_path}: must be of type volume with -cfg restricted=True")
        return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    privileged = any(isinstance(mount, DeviceMount) for mount in role.mounts)
    return _filled({"privileged": privileged, "capabilities": {"add": ["IPC_LOCK"]} if opts.ipc_lock else {}})


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that are not empty."""
    return {name: value for name, value in fields.items() if value not in (None, [], {}, False)}
