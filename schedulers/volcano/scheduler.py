"""The `kubernetes` scheduler: TorchX's own, with code as a layer or as an archive."""

from dataclasses import replace
from typing import Any

from torchx.schedulers.api import DescribeAppResponse
from torchx.schedulers.kubernetes_scheduler import KubernetesJob, KubernetesOpts, KubernetesScheduler
from torchx.specs import NONE, AppDef, AppDryRunInfo

from schedulers.code.workspace import CodeWorkspace, annotation, in_status, mount_archives


class VolcanoScheduler(CodeWorkspace, KubernetesScheduler):  # pyrefly: ignore[invalid-inheritance]
    """Runs an app as a Volcano Job, as TorchX does."""

    def builds_images(self) -> bool:
        """Returns True: Docker builds workspaces that have a Dockerfile of TorchX's."""
        return True

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Returns the status of a job, with the code that it runs."""
        found, native = super().describe(app_id), self.describe_native(app_id)
        if not found or not native:
            return None
        said = [*in_status(native.request.resource), *([found.msg] if found.msg not in ("", NONE) else [])]
        return replace(found, msg="; ".join(said) or found.msg)

    def _submit_dryrun(self, app: AppDef, cfg: KubernetesOpts) -> AppDryRunInfo[KubernetesJob, KubernetesOpts]:
        info = super()._submit_dryrun(app, cfg)
        shipments = info.request.images_to_push.values()
        if noted := annotation(shipments):
            info.request.resource = _with_code(info.request.resource, shipments, noted)
        return info


def _with_code(resource: dict[str, Any], shipments: Any, noted: dict[str, str]) -> dict[str, Any]:
    """Returns a Volcano Job as plain data, with its code."""
    from kubernetes.client import ApiClient

    plain: Any = ApiClient().sanitize_for_serialization(resource)
    mount_archives(shipments, [task["template"] for task in plain["spec"]["tasks"]])
    metadata = plain["metadata"]
    return plain | {"metadata": metadata | {"annotations": (metadata.get("annotations") or {}) | noted}}


def create_scheduler(
    session_name: str, client: Any = None, docker_client: Any = None, **kwargs: object
) -> VolcanoScheduler:
    """Returns the scheduler that TorchX knows as `kubernetes`."""
    return VolcanoScheduler(session_name, client=client, docker_client=docker_client)
