"""Calls to a Kubernetes API server, with its errors in one line."""

import json
import math
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from schedulers.errors import SchedulerError, Unreachable
from schedulers.jobset import names
from schedulers.jobset.restarts import MESSAGE_PATTERNS, OLDEST_JOBSET

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Object = dict[str, Any]

# Seconds to connect and to answer, so that a cluster out of reach does not hold up the shell.
TIMEOUT_SECONDS = (10, 60)
JOBSETS = {"group": names.GROUP, "version": names.VERSION, "plural": names.PLURAL}
KUEUE = "kueue.x-k8s.io"
# Newer versions of Kueue serve the first, older ones the second.
WORKLOAD_VERSIONS = ("v1beta2", "v1beta1")
NO_CLIENT = "Kubernetes needs its client: pip install 'torchx-recsys[kubernetes]'"
NO_JOBSET = f"the cluster has no {names.GROUP}/{names.VERSION}: install JobSet there, or use -s kubernetes with Volcano"
OLD_JOBSET = f"the cluster's JobSet is older than {OLDEST_JOBSET} and lacks {MESSAGE_PATTERNS}: have it upgraded"


class Namespace:
    """One namespace of a cluster: its pods, their logs, and custom objects.

    Every method raises SchedulerError if the cluster refuses or cannot be reached.
    """

    def __init__(self, client: "ApiClient", namespace: str) -> None:
        self._client = client
        self._namespace = namespace

    def pods(self, labels: dict[str, str]) -> list[Object]:
        """Reads the pods with these labels."""
        from kubernetes.client import CoreV1Api

        with _one_line():
            answer: Any = CoreV1Api(self._client).list_namespaced_pod(
                self._namespace,
                label_selector=_selector(labels),
                _preload_content=False,
                _request_timeout=TIMEOUT_SECONDS,
            )
        return json.loads(answer.data)["items"]

    def events(self, objects: Iterable[str]) -> list[Object]:
        """Reads the warnings about objects of these names; none without permission."""
        from kubernetes.client import CoreV1Api

        found: list[Object] = []
        for name in objects:
            with _one_line((403,)):
                answer: Any = CoreV1Api(self._client).list_namespaced_event(
                    self._namespace,
                    field_selector=f"involvedObject.name={name},type=Warning",
                    _preload_content=False,
                    _request_timeout=TIMEOUT_SECONDS,
                )
                found += json.loads(answer.data)["items"]
        return found

    def end_of_log(self, pod: str, container: str, lines: int) -> list[str]:
        """Reads the last lines of a container's log, with timestamps; none without permission, too."""
        from kubernetes.client import CoreV1Api

        with _one_line((400, 403, 404)):
            answer: Any = CoreV1Api(self._client).read_namespaced_pod_log(
                pod,
                self._namespace,
                container=container,
                timestamps=True,
                tail_lines=lines,
                _preload_content=False,
                _request_timeout=TIMEOUT_SECONDS,
            )
            return answer.data.decode(errors="replace").splitlines()
        return []

    def log(self, pod: str, container: str, since: datetime | None, follow: bool) -> Iterator[str]:
        """Yields the lines of a container's log with timestamps; none if the pod is gone or has not started."""
        from kubernetes.client import CoreV1Api

        window: dict[str, Any] = {"since_seconds": _seconds_ago(since)} if since else {}
        options = {"container": container, "timestamps": True, "follow": follow, "_preload_content": False}
        with _one_line((400, 404)):
            stream: Any = CoreV1Api(self._client).read_namespaced_pod_log(pod, self._namespace, **options, **window)
            for line in stream:
                yield line.decode(errors="replace")

    def _call(
        self, verb: str, kind: Mapping[str, str], missing: tuple[int, ...] = (404,), part: str = "", **arguments: Any
    ) -> Object | None:
        """Calls the API of custom objects, or of a part such as `_status`; None if the answer has a `missing` code."""
        from kubernetes.client import CustomObjectsApi

        call = getattr(CustomObjectsApi(self._client), f"{verb}_namespaced_custom_object{part}")
        with _one_line(missing):
            return call(namespace=self._namespace, _request_timeout=TIMEOUT_SECONDS, **kind, **arguments)
        return None


class Cluster(Namespace):
    """One namespace of a cluster: its JobSets, their pods and their Kueue workloads."""

    def __init__(self, context: str | None, namespace: str) -> None:
        super().__init__(api_client(context), namespace)

    def create(self, resource: Object) -> None:
        """Creates a JobSet under strict validation: by default, the API server drops unknown fields."""
        try:
            created = self._call("create", JOBSETS, body=resource, field_validation="Strict")
        except SchedulerError as error:
            if MESSAGE_PATTERNS in str(error):
                raise SchedulerError(OLD_JOBSET) from error
            raise
        if not created:
            raise SchedulerError(NO_JOBSET)

    def jobset(self, name: str) -> Object | None:
        """Reads a JobSet; None if there is none of that name."""
        return self._call("get", JOBSETS, name=name)

    def jobsets(self) -> list[Object]:
        """Reads all JobSets that TorchX has created."""
        found = self._call("list", JOBSETS, label_selector=_selector(names.MANAGED_BY))
        if not found:
            raise SchedulerError(NO_JOBSET)
        return found["items"]

    def patch(self, name: str, change: Object) -> None:
        """Merges a change into a JobSet; None removes a key."""
        self._call("patch", JOBSETS, name=name, body=change)

    def delete(self, name: str) -> None:
        """Deletes a JobSet and, in the background, its Jobs and pods."""
        self._call("delete", JOBSETS, name=name)

    def warnings(self, jobset: Mapping[str, Any]) -> list[Object]:
        """Reads the warnings about a JobSet and its Jobs, such as why no pod is created; none without permission."""
        return self.events(names.objects_of(jobset))

    def workloads(self, jobset: Object) -> list[Object]:
        """Reads the Kueue workloads of a JobSet; none if it is in no queue, or this user may not read them."""
        selector = _selector({f"{KUEUE}/job-uid": jobset["metadata"]["uid"]})
        for version in WORKLOAD_VERSIONS if names.QUEUE_LABEL in names.labels_of(jobset) else ():
            if found := self._workloads(version, "list", label_selector=selector):
                return found["items"]
        return []

    def deactivate(self, workload: Object) -> None:
        """Makes Kueue stop a job for good and release its quota."""
        version, name = workload["apiVersion"].partition("/")[2], workload["metadata"]["name"]
        self._workloads(version, "patch", name=name, body={"spec": {"active": False}})

    def _workloads(self, version: str, verb: str, **arguments: Any) -> Object | None:
        kind = {"group": KUEUE, "version": version, "plural": "workloads"}
        return self._call(verb, kind, missing=(403, 404), **arguments)


def api_client(context: str | None, retries: bool | None = None) -> "ApiClient":
    """Returns a client for a context of the kubeconfig file, or else for the cluster that this process runs in.

    Args:
        context: The context; the current one if unset.
        retries: Whether to retry a failed connection; the client's default if unset.

    Raises:
        SchedulerError: The client is not installed, or the kubeconfig file is malformed.
        Unreachable: No cluster is configured.
    """
    try:
        from kubernetes import client, config
    except ModuleNotFoundError as error:
        raise SchedulerError(NO_CLIENT) from error
    configuration = client.Configuration()
    configuration.retries = retries
    try:
        config.load_kube_config(context=context, client_configuration=configuration)
    except config.ConfigException as failure:
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            raise Unreachable(f"no Kubernetes cluster: {failure}; set KUBECONFIG or -cfg context") from failure
    except Exception as failure:
        raise SchedulerError(error_line(failure)) from failure
    return client.ApiClient(configuration)


@contextmanager
def _one_line(missing: tuple[int, ...] = ()) -> Iterator[None]:
    """Turns the client's errors into the server's message; an error with a `missing` code only ends the block."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (ApiException, HTTPError) as error:
        if not isinstance(error, ApiException) or error.status not in missing:
            kind = SchedulerError if isinstance(error, ApiException) else Unreachable
            raise kind(error_line(error)) from error


def error_line(error: Any) -> str | None:
    """Returns an error of the Kubernetes client, or of urllib3 below it, in one line; None for any other."""
    if _in_kubeconfig(error):
        file, words = _kubeconfig(), " ".join(str(error).split())
        return f"KUBECONFIG {file}: must be a kubeconfig file that kubectl can use: {words}"
    if not type(error).__module__.startswith(("kubernetes.", "urllib3.")):
        return None
    if hasattr(error, "status"):
        return f"Kubernetes: {_message(error)}"
    reason = str(getattr(error, "reason", error)).partition("): ")[2] or error
    return f"Kubernetes cannot be reached: {reason}; see kubectl cluster-info"


def _in_kubeconfig(error: BaseException) -> bool:
    """Returns whether an error comes from a malformed kubeconfig file, which the client does not check."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(module.startswith("kubernetes.config") for module in modules)


def _kubeconfig() -> str:
    from kubernetes.config import kube_config

    return kube_config.KUBE_CONFIG_DEFAULT_LOCATION


def _message(error: Any) -> str:
    try:
        return " ".join(json.loads(error.body)["message"].split())
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"


def _selector(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _seconds_ago(since: datetime) -> int:
    return max(1, math.ceil((datetime.now(UTC) - since.astimezone(UTC)).total_seconds()))
