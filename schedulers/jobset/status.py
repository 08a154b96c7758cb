"""The state of a job and of its replicas, from its JobSet and pods, in TorchX's terms."""

import json
import signal
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from torchx.schedulers.api import DescribeAppResponse
from torchx.specs import NONE, AppState, ReplicaState, ReplicaStatus, Role, RoleStatus

from schedulers.code.archive import UNPACKER
from schedulers.code.workspace import in_status
from schedulers.jobset import names, spec
from schedulers.jobset.after import CANCELLED, WAITER
from schedulers.jobset.names import ATTEMPT, INDEX
from schedulers.jobset.restarts import FINAL

Object = Mapping[str, Any]

PHASES = {
    "Pending": ReplicaState.PENDING,
    "Running": ReplicaState.RUNNING,
    "Succeeded": ReplicaState.SUCCEEDED,
    "Failed": ReplicaState.FAILED,
}
# The state of a replica without a pod, by the state of the job.
WITHOUT_POD = {
    AppState.SUCCEEDED: ReplicaState.SUCCEEDED,
    AppState.FAILED: ReplicaState.CANCELLED,
    AppState.CANCELLED: ReplicaState.CANCELLED,
}
# Waiting for one of these is a part of every start.
ORDINARY_WAITS = ("ContainerCreating", "PodInitializing")
# Lines of a failed container's log that are shown.
LAST_LINES = 5


def app_state(jobset: Object) -> AppState:
    """Returns the state of a job from its JobSet alone."""
    conditions = conditions_of(jobset)
    if "Completed" in conditions:
        return AppState.SUCCEEDED
    # A job that is cancelled may fail while it leaves; one that has failed is not cancelled.
    if _is_cancelled(jobset):
        return AppState.CANCELLED
    jobs = jobset.get("status", {}).get("replicatedJobsStatus", [])
    if "Failed" in conditions:
        waiter_failed = any(job.get("failed") for job in jobs if job["name"] == WAITER)
        return AppState.CANCELLED if waiter_failed else AppState.FAILED
    if jobset["spec"].get("suspend"):
        return AppState.PENDING
    jobs = [job for job in jobs if job["name"] != WAITER]
    started = jobs and all(sum(job.get(count, 0) for count in ("ready", "succeeded", "failed")) for job in jobs)
    return AppState.RUNNING if started else AppState.PENDING


def _is_cancelled(jobset: Object) -> bool:
    """Returns whether somebody has cancelled or deleted a job."""
    return CANCELLED in jobset["metadata"].get("annotations", {}) or "deletionTimestamp" in jobset["metadata"]


def describe(
    app_id: str,
    jobset: Object,
    pods: Iterable[Object],
    workloads: Iterable[Object],
    waits: str = "",
    warning: str = "",
) -> DescribeAppResponse:
    """Returns the status of a job and of each replica, with its reasons.

    Args:
        app_id: The id of the job.
        jobset: The job.
        pods: Its pods.
        workloads: Kueue's workload of the job, if the job waits in a queue.
        waits: The jobs that it waits for.
        warning: The cluster's message about missing pods.
    """
    newest = newest_pods(pods)
    waiter = newest.pop((WAITER, 0), None)
    roles = spec.roles(jobset)
    state = app_state(jobset)
    # A Job is not ready while a replica has failed and another, perhaps on a node that is gone, still has to leave.
    if state == AppState.PENDING and not suspension(jobset) and _begun(jobset, newest) == _replicas(jobset):
        state = AppState.RUNNING
    return DescribeAppResponse(
        app_id=app_id,
        state=state,
        num_restarts=jobset.get("status", {}).get("restarts", 0),
        msg="; ".join([*_waiting(state, waiter, waits), *_messages(jobset, state, newest, workloads, warning)]),
        roles=roles,
        roles_statuses=[_role_status(jobset, role, state, newest) for role in roles],
    )


def _waiting(state: AppState, waiter: Object | None, waits: str) -> list[str]:
    """Returns what a job waits for before its own pods are created, or why they never were."""
    if waiter is None:
        return []
    if state == AppState.CANCELLED:
        return list(filter(None, [_final_line(waiter)]))
    reason = pod_reason(waiter)
    return list(filter(None, [waits, reason])) if state == AppState.PENDING else []


def newest_pods(pods: Iterable[Object]) -> dict[tuple[str, int], Object]:
    """Returns the pod of the last attempt of each replica, by role and replica id."""
    return {(container_name(pod), int(names.labels_of(pod).get(INDEX, 0))): pod for pod in sorted(pods, key=_age)}


def _age(pod: Object) -> tuple[int, str]:
    return int(names.labels_of(pod).get(ATTEMPT, 0)), pod["metadata"]["creationTimestamp"]


def _messages(
    jobset: Object,
    state: AppState,
    pods: Mapping[tuple[str, int], Object],
    workloads: Iterable[Object],
    warning: str,
) -> Iterable[str]:
    conditions = conditions_of(jobset)
    if state == AppState.FAILED:
        lines = [line for pod in pods.values() if (line := _final_line(pod))]
        yield lines[0] if lines else conditions["Failed"].get("message", "failed")
    elif state == AppState.CANCELLED:
        leaving = sum(pod["status"].get("phase") == "Running" for pod in pods.values())
        if _is_cancelled(jobset):
            yield f"cancelled; pods that still save and leave: {leaving}" if leaving else "cancelled"
    elif state == AppState.PENDING:
        yield _pending(jobset, pods, workloads, warning)
    status = jobset.get("status", {})
    if status.get("restarts"):
        used, allowed = status.get("restartsCountTowardsMax", 0), jobset["spec"]["failurePolicy"]["maxRestarts"]
        yield f"restarts: {status['restarts']}; retries used: {used} of {allowed}"
    for pod in pods.values():
        if pod["status"].get("phase") == "Succeeded" and (outcome := _termination(pod).get("message")):
            yield outcome.strip()
    yield from in_status(jobset)


def lacks_pods(jobset: Object, pods: Iterable[Object]) -> bool:
    """Returns whether a job lacks pods that it should have by now; a job that waits for others does not."""
    newest = newest_pods(pods)
    waiter = newest.pop((WAITER, 0), None)
    waits = waiter and waiter["status"].get("phase") in ("Pending", "Running")
    return not waits and len(newest) < _replicas(jobset)


def newest_warning(events: Iterable[Object]) -> str:
    """Returns the message of the newest event, in one line."""
    newest = max(events, key=_time_of, default={})
    return " ".join(newest.get("message", "").split())


def _time_of(event: Object) -> str:
    times = (event.get("lastTimestamp"), event.get("eventTime"), event["metadata"].get("creationTimestamp"))
    return next(filter(None, times), "")


def _pending(jobset: Object, pods: Mapping[tuple[str, int], Object], workloads: Iterable[Object], warning: str) -> str:
    if waits := suspension(jobset):
        admission = [conditions_of(each, status="False").get("QuotaReserved", {}) for each in workloads]
        reason = next((condition["message"] for condition in admission if condition.get("message")), "")
        return f"{waits}: {reason}" if reason else waits
    reasons = [*filter(None, [warning, *map(pod_reason, pods.values())])]
    return "; ".join([f"pods started: {_begun(jobset, pods)} of {_replicas(jobset)}", *reasons[:1]])


def _replicas(jobset: Object) -> int:
    """Returns the replicas of all roles."""
    return sum(role.num_replicas for role in spec.roles(jobset))


def _begun(jobset: Object, pods: Mapping[tuple[str, int], Object]) -> int:
    """Returns how many replicas of the current attempt have started."""
    attempt = str(jobset.get("status", {}).get("restarts", 0))
    present = [pod for pod in pods.values() if names.labels_of(pod).get(ATTEMPT, "0") == attempt]
    return sum(pod["status"].get("phase", "Pending") != "Pending" for pod in present)


def suspension(jobset: Object) -> str:
    """Returns what a suspended job waits for; empty for a job that may have pods."""
    if not jobset["spec"].get("suspend"):
        return ""
    queue = names.labels_of(jobset).get(names.QUEUE_LABEL)
    return f"waits for its quota in queue {queue}" if queue else "suspended"


def _role_status(jobset: Object, role: Role, state: AppState, pods: Mapping[tuple[str, int], Object]) -> RoleStatus:
    found = [pods.get((role.name, number)) for number in range(role.num_replicas)]
    without_pod = WITHOUT_POD.get(state, ReplicaState.PENDING)
    replicas = [
        ReplicaStatus(
            id=number,
            role=role.name,
            state=PHASES.get(pod["status"].get("phase"), ReplicaState.UNKNOWN) if pod else without_pod,
            hostname=f"{jobset['metadata']['name']}-{role.name}-0-{number}.{jobset['metadata']['name']}",
            hostaddr=pod["status"].get("podIP") if pod else None,
            structured_error_msg=structured_reason(pod) if pod else NONE,
        )
        for number, pod in enumerate(found)
    ]
    return RoleStatus(role.name, replicas)


def structured_reason(pod: Object) -> str:
    """Returns the reason why a pod does not run, in the JSON that TorchX prints."""
    reason = pod_reason(pod)
    if not reason:
        return NONE
    node = pod["spec"].get("nodeName")
    message = f"{reason} (pod {pod['metadata']['name']}{f' on {node}' if node else ''})"
    terminated = _termination(pod)
    error = {"message": message, "errorCode": terminated.get("exitCode")}
    if "finishedAt" in terminated:
        error["timestamp"] = int(datetime.fromisoformat(terminated["finishedAt"]).timestamp())
    return json.dumps(error)


def pod_reason(pod: Object) -> str:
    """Returns why a pod does not run, or how it ended; empty for one that runs or succeeded."""
    status = pod["status"]
    disrupted = conditions_of(pod).get("DisruptionTarget", {})
    unscheduled = conditions_of(pod, status="False").get("PodScheduled", {})
    containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    parts = [_reason_and_message(each) for each in (disrupted, status, unscheduled)]
    parts += [_container_reason(container.get("state", {})) for container in containers]
    return "; ".join(part for part in parts if part)


def _container_reason(state: Object) -> str:
    if "waiting" in state:
        return "" if state["waiting"].get("reason") in ORDINARY_WAITS else _reason_and_message(state["waiting"])
    terminated = state.get("terminated", {})
    code = terminated.get("exitCode", 0)
    if not code:
        return ""
    ending = f"exit code {code}{_signal(code)}"
    if terminated.get("reason") not in (None, "Error"):
        ending = f"{terminated['reason']}, {ending}"
    lines = [line for line in terminated.get("message", "").splitlines() if line.strip(" =-")]
    return f"{ending}: {' | '.join(lines[-LAST_LINES:])}" if lines else ending


def _signal(code: int) -> str:
    try:
        return f" ({signal.Signals(code - 128).name})"
    except ValueError:
        return ""


def _reason_and_message(condition: Object) -> str:
    return ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)


def _termination(pod: Object) -> Object:
    """Returns how the replica's container ended, or the one that unpacks its code; a cluster may add others."""
    unpackers = (one for one in pod["status"].get("initContainerStatuses", ()) if one["name"] == UNPACKER)
    unpacked = next((one.get("state", {}).get("terminated", {}) for one in unpackers), {})
    return unpacked if unpacked.get("exitCode") else container_state(pod).get("terminated", {})


def container_state(pod: Object) -> Object:
    """Returns the state of the replica's own container, which is named after its role; empty before it exists."""
    containers = pod["status"].get("containerStatuses", ())
    return next((each.get("state", {}) for each in containers if each["name"] == container_name(pod)), {})


def container_name(pod: Object) -> str:
    """Returns the name of the replica's own container in a pod."""
    labels = names.labels_of(pod)
    return labels[names.ROLE_LABEL] if names.ROLE_LABEL in labels else names.task_of(labels)


def _final_line(pod: Object) -> str:
    """Returns why a replica ended if its job does not restart; else empty."""
    terminated = _termination(pod)
    return terminated.get("message", "").strip() if terminated.get("exitCode") in FINAL else ""


def conditions_of(resource: Object, status: str = "True") -> dict[str, Object]:
    """Returns the conditions of an object that have a status, by their types."""
    conditions = resource.get("status", {}).get("conditions") or ()
    return {each["type"]: each for each in conditions if each["status"] == status}
