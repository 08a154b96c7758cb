"""The state of a job and of its replicas, from its Volcano Job and pods, in TorchX's terms."""

from collections.abc import Iterable, Mapping

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import NONE, AppState, ReplicaState, ReplicaStatus, Role, RoleStatus

from schedulers.jobset import names
from schedulers.jobset.status import (
    PHASES,
    WITHOUT_POD,
    Object,
    conditions_of,
    container_name,
    container_state,
    pod_reason,
    structured_reason,
)

# TorchX's own scheduler shows Aborting as RUNNING.
STATES = {
    "": AppState.PENDING,
    "Pending": AppState.PENDING,
    "Running": AppState.RUNNING,
    "Restarting": AppState.RUNNING,
    "Completing": AppState.RUNNING,
    "Completed": AppState.SUCCEEDED,
    "Aborting": AppState.CANCELLED,
    "Aborted": AppState.CANCELLED,
    "Terminating": AppState.RUNNING,
    "Terminated": AppState.FAILED,
    "Failed": AppState.FAILED,
}
# Phases in which a running job is about to change.
UNDERWAY = {"Restarting": "restarting: its pods are being replaced", "Terminating": "terminating"}
UNSEEN = "Volcano has not taken it up yet"
INSTANCE_LABEL = "app.kubernetes.io/instance"


def phase_of(job: Object) -> str:
    """Returns the phase of a Job; empty before Volcano has set one."""
    return job.get("status", {}).get("state", {}).get("phase", "")


def app_state(job: Object) -> AppState:
    """Returns the state of a job from its Volcano Job alone."""
    if "deletionTimestamp" in job["metadata"]:
        return AppState.CANCELLED
    return STATES.get(phase_of(job), AppState.UNKNOWN)


def roles_of(job: Object) -> list[Role]:
    """Returns the roles of a Job: TorchX makes a task `ROLE-NUMBER` for each replica."""
    found: dict[str, Role] = {}
    for task in job["spec"]["tasks"]:
        name = task["name"].rpartition("-")[0]
        image = task["template"]["spec"]["containers"][0]["image"]
        found.setdefault(name, Role(name=name, image=image, num_replicas=0)).num_replicas += 1
    return [*found.values()]


def app_name(job: Object) -> str:
    """Returns the name of the app of a Job; empty if TorchX did not make it."""
    (task, *_) = job["spec"]["tasks"]
    return names.labels_of({"metadata": task["template"].get("metadata", {})}).get("app.kubernetes.io/name", "")


def newest_pods(pods: Iterable[Object]) -> dict[str, Object]:
    """Returns the newest pod of each task: a restart replaces all."""
    return {container_name(pod): pod for pod in sorted(pods, key=lambda pod: pod["metadata"]["creationTimestamp"])}


def describe(app_id: str, job: Object, pods: Iterable[Object], reason: str = "") -> DescribeAppResponse:
    """Returns the status of a job and of each replica, with its reasons.

    Args:
        app_id: The id of the job.
        job: Its Volcano Job.
        pods: Its pods.
        reason: Why it has not started, as its queue, its gang or a refusal of its pods explains.
    """
    newest, roles, state = newest_pods(pods), roles_of(job), app_state(job)
    return DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=job.get("status", {}).get("retryCount", 0),
        msg="; ".join(filter(None, messages(job, state, newest, reason))),
        roles=roles,
        roles_statuses=[_role_status(app_id, role, state, newest) for role in roles],
    )


def messages(job: Object, state: AppState, pods: Mapping[str, Object], reason: str) -> Iterable[str]:
    """Yields the parts of the message of a job's status."""
    phase, status = phase_of(job), job.get("status", {})
    if state == AppState.PENDING:
        yield f"pods started: {begun(pods)} of {len(job['spec']['tasks'])}"
        yield next(filter(None, [reason, *map(pod_reason, pods.values())]), "" if phase else UNSEEN)
    elif state == AppState.CANCELLED:
        leaving = sum(pod["status"].get("phase") == "Running" for pod in pods.values())
        yield f"cancelled; pods that still save and leave: {leaving}" if leaving else "cancelled"
    elif state == AppState.FAILED:
        yield first_failure(pods) or status.get("state", {}).get("message") or phase.lower()
    elif phase in UNDERWAY:
        yield UNDERWAY[phase]
    elif state == AppState.UNKNOWN:
        yield f"Volcano's phase {phase}"
    if restarts := status.get("retryCount"):
        yield f"restarts: {restarts}"


def begun(pods: Mapping[str, Object]) -> int:
    """Returns how many replicas have started."""
    return sum(pod["status"].get("phase", "Pending") != "Pending" for pod in pods.values())


def first_failure(pods: Mapping[str, Object]) -> str:
    """Returns the replica that failed first, and how it ended; empty if none has failed."""
    failed = [pod for pod in pods.values() if pod["status"].get("phase") == "Failed"]
    if not failed:
        return ""
    first = min(failed, key=lambda pod: container_state(pod).get("terminated", {}).get("finishedAt", ""))
    role, _, number = container_name(first).rpartition("-")
    return f"{role}/{number}: {pod_reason(first)}"


def gang_reason(pod_group: Object | None) -> str:
    """Returns why the gang of a job has not started, as its queue or Volcano's scheduler explains; empty if unknown."""
    told = conditions_of(pod_group or {}).get("Unschedulable", {})
    reason = ": ".join(part for part in (told.get("reason"), told.get("message")) if part)
    return " ".join(reason.split())


def _role_status(app_id: str, role: Role, state: AppState, pods: Mapping[str, Object]) -> RoleStatus:
    namespace, without_pod = app_id.partition(":")[0], WITHOUT_POD.get(state, ReplicaState.PENDING)
    replicas = []
    for number in range(role.num_replicas):
        pod = pods.get(f"{role.name}-{number}")
        phase = pod["status"].get("phase", "Pending") if pod else ""
        address = pod["status"].get("podIP") if pod else None
        replicas.append(
            ReplicaStatus(
                id=number,
                role=role.name,
                state=PHASES.get(phase, ReplicaState.UNKNOWN) if pod else without_pod,
                hostname=f"{address.replace('.', '-')}.{namespace}.pod.cluster.local" if address else "",
                hostaddr=address,
                structured_error_msg=structured_reason(pod) if pod else NONE,
            )
        )
    return RoleStatus(role.name, replicas)
