"""The pods of a request, checked without a cluster."""

from collections.abc import Iterable, Mapping
from typing import Any

from schedulers.errors import SchedulerError

NOT_CHECKED = "the pods of the request are not checked: pip install kubernetes-validate kubernetes to have them checked"


def check_pods(resource: Mapping[str, Any]) -> str:
    """Checks the pods of a JobSet, or of a Volcano Job, against Kubernetes' own schema.

    A cluster checks more: names and labels, quota, policies, and the object around the pods.

    Returns:
        What was checked, in a line.

    Raises:
        SchedulerError: A pod has a field that Kubernetes does not know, or a wrong value.
    """
    try:
        import kubernetes_validate
        from kubernetes.client import ApiClient
    except ModuleNotFoundError:
        return NOT_CHECKED
    plain: Any = ApiClient().sanitize_for_serialization(resource)
    version = kubernetes_validate.latest_version()
    for template in _templates(plain):
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {"name": "x"} | template["metadata"]}
        try:
            kubernetes_validate.validate(pod, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            place = ".".join(map(str, error.path))
            raise SchedulerError(f"the request has a wrong pod: {place}: {error.message}") from error
    return f"the pods of the request are valid for the schema of Kubernetes {version}"


def _templates(resource: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    spec = resource["spec"]
    if resource["kind"] == "JobSet":
        return [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]
    return [task["template"] for task in spec["tasks"]]
