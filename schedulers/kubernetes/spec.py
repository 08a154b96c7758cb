"""Mends the Volcano Job that TorchX makes of an app."""

from typing import Any

from torchx.settings import ENV_TORCHX_JOB_ID
from torchx.specs import AppDef
from torchx.util.strings import normalize_str

from schedulers.errors import SchedulerError
from schedulers.jobset.cluster import NO_CLIENT
from schedulers.jobset.names import LONGEST_NAME


def mended(resource: dict[str, Any], app: AppDef, handle: str) -> dict[str, Any]:
    """Returns a Job as plain data in which replicas find replica 0 and know their job, and a failure keeps its words.

    TorchX writes `VC_MY-TRAIN_0_HOSTS` for the variable that Volcano calls `VC_MY_TRAIN_0_HOSTS`. No shell knows a
    variable with a `-`: bash takes the rest of the name for a default, and replicas never find replica 0.

    Args:
        resource: TorchX's Job.
        app: The app.
        handle: The handle of the job; TorchX gives one without the namespace to the replicas.
    """
    from kubernetes.client import ApiClient

    plain: Any = ApiClient().sanitize_for_serialization(resource)
    written = f"VC_{normalize_str(app.roles[0].name)}_0_HOSTS".upper()
    for task in plain["spec"]["tasks"]:
        for container in task["template"]["spec"]["containers"]:
            _rename(container, written, written.replace("-", "_"))
            if container["name"] == task["name"]:
                container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
            for variable in container.get("env", ()):
                if variable["name"] == ENV_TORCHX_JOB_ID:
                    variable["value"] = handle
    return plain


def _rename(container: dict[str, Any], old: str, new: str) -> None:
    for key in ("command", "args"):
        if key in container:
            container[key] = [word.replace(old, new) for word in container[key]]
    for variable in container.get("env", ()):
        if "value" in variable:
            variable["value"] = variable["value"].replace(old, new)


def with_overlay(app: AppDef) -> AppDef:
    """Gives the pod of `--metadata kubernetes=...` to the roles, where TorchX looks for it."""
    if overlay := app.metadata.get("kubernetes"):
        for role in app.roles:
            role.metadata.setdefault("kubernetes", overlay)
    return app


def check_names(resource: dict[str, Any], app: AppDef) -> None:
    """Refuses names that the cluster accepts for the Job, and later refuses for its pods and its service.

    Raises:
        SchedulerError: A name is too long, or does not begin with a letter.
    """
    name = resource["metadata"]["name"]
    if not name[:1].isalpha():
        raise SchedulerError(f"--name {app.name}: must begin with a letter, as host names on Kubernetes do")
    longest = max((f"{name}-{task['name']}-0" for task in resource["spec"]["tasks"]), key=len)
    if (excess := len(longest) - LONGEST_NAME) > 0:
        roles = ", ".join(role.name for role in app.roles)
        raise SchedulerError(f"--name {app.name}, roles {roles}: must be {excess} characters shorter for Kubernetes")


def require_client() -> None:
    """Refuses to make a request without the Kubernetes client, whose types TorchX makes pods of.

    Raises:
        SchedulerError: The client is not installed.
    """
    try:
        import kubernetes  # noqa: F401
    except ModuleNotFoundError as error:
        raise SchedulerError(NO_CLIENT) from error
