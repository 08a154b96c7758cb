"""The workspace of a scheduler whose jobs run images: as a layer, or as an archive, shipped when a job is submitted."""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torchx.specs import AppDef, CfgVal, Role, Workspace, runopts
from torchx.workspace.api import WorkspaceMixin

from schedulers.code.archive import Archive, archive_in
from schedulers.code.files import CODE_DIR, code_of, short
from schedulers.code.layer import Layer, layer_on
from schedulers.errors import SchedulerError
from trainer.core.outcome import CODE_VARIABLE

log = logging.getLogger(__name__)

Shipment = Layer | Archive

CODE_ANNOTATION = "torchx.pytorch.org/code"  # of a job: the digest of its code
DOCKERFILE = "Dockerfile.torchx"
# Metadata key of a role between the build of its workspace and the request.
_SHIPMENT = "torchx-recsys/shipment"


class CodeWorkspace(WorkspaceMixin[dict[str, Any]]):
    """Ships the workspace of a role by `image_repo` or `code`; without them, the next workspace in the order does."""

    def workspace_opts(self) -> runopts:
        """Returns the two options, with those of other workspaces."""
        opts = super().workspace_opts()
        opts.add(
            "image_repo",
            type_=str,
            help="Repository of images: the workspace becomes a layer on the image, pushed there without Docker.",
        )
        opts.add(
            "code",
            type_=str,
            help="URL of a folder, such as s3://bucket/code: the workspace is uploaded there once, and pods unpack it.",
        )
        return opts

    def caching_build_workspace_and_update_role(
        self, role: Role, cfg: Mapping[str, CfgVal], build_cache: dict[object, object]
    ) -> None:
        """Names the image or the archive that the role will have; nothing is sent before the job is submitted.

        Raises:
            SchedulerError: The files or the options cannot be used, or the base image cannot be read.
        """
        if not role.workspace:
            return
        way = way_of(cfg)
        if way is None or self.needs_build(role.workspace, way):
            super().caching_build_workspace_and_update_role(role, cfg, build_cache)
            return
        key = (role.image, role.workspace)
        if key not in build_cache:
            build_cache[key] = _shipment(role, way, cfg)
        shipment: Any = build_cache[key]
        before = role.env.get("PYTHONPATH")
        role.env[CODE_VARIABLE] = shipment.code.digest
        if isinstance(shipment, Layer):
            role.image = shipment.image
        if isinstance(shipment, Archive) or before:
            role.env["PYTHONPATH"] = ":".join(filter(None, [CODE_DIR, before]))
        role.metadata = {**role.metadata, _SHIPMENT: shipment}

    def builds_images(self) -> bool:
        """Returns whether the next workspace in the order can build an image by a Dockerfile."""
        return False

    def needs_build(self, workspace: Workspace, way: str) -> bool:
        """Returns whether a workspace has a Dockerfile of TorchX's, which no layer can replace.

        Raises:
            SchedulerError: It has one, and this scheduler builds no images.
        """
        if way != "image_repo" or not any((Path(one) / DOCKERFILE).exists() for one in workspace.projects):
            return False
        if not self.builds_images():
            raise SchedulerError(
                f"--workspace {workspace}: has a {DOCKERFILE}, which only Docker runs: build and push the image, and "
                "give --workspace ''"
            )
        return True

    def dryrun_push_images(self, app: AppDef, cfg: Mapping[str, CfgVal]) -> dict[str, Any]:
        """Returns what submitting the app would send, by image or URL."""
        others = super().dryrun_push_images(app, cfg) if self.builds_images() else {}
        return others | {_name(one): one for role in app.roles if (one := _taken(role))}

    def push_images(self, images_to_push: dict[str, Any]) -> None:
        """Sends it, and says so.

        Raises:
            SchedulerError: A registry or a storage refuses it, or cannot be reached.
        """
        ours = {name: one for name, one in images_to_push.items() if isinstance(one, Shipment)}
        for shipment in ours.values():
            shipment.ship(log.info)
        if others := {name: one for name, one in images_to_push.items() if name not in ours}:
            super().push_images(others)


def way_of(cfg: Mapping[str, CfgVal]) -> str | None:
    """Returns the option that says how the code travels; None without one."""
    given = [name for name in ("image_repo", "code") if cfg.get(name)]
    if len(given) == 2:
        raise SchedulerError(f"-cfg code={cfg['code']}: must not come with image_repo: code is a layer or an archive")
    return given[0] if given else None


def _shipment(role: Role, way: str, cfg: Mapping[str, Any]) -> Shipment:
    assert role.workspace
    code = code_of(role.workspace)
    if way == "code":
        return archive_in(cfg["code"], code)
    return layer_on(role.image, code, cfg["image_repo"], cfg.get("node_selector") or {})


def _taken(role: Role) -> Shipment | None:
    """Returns the shipment of a role, and removes it from its metadata."""
    found = role.metadata.get(_SHIPMENT)
    role.metadata = {key: value for key, value in role.metadata.items() if key != _SHIPMENT}
    return found


def _name(shipment: Shipment) -> str:
    return shipment.image if isinstance(shipment, Layer) else shipment.url


def mount_archives(shipments: Iterable[Any], pods: Iterable[dict[str, Any]]) -> None:
    """Makes the pods of roles whose code is an archive unpack it first."""
    archives = {one.code.digest: one for one in shipments if isinstance(one, Archive)}
    for pod in pods:
        env = {one["name"]: one.get("value", "") for one in pod["spec"]["containers"][0].get("env", ())}
        if archive := archives.get(env.get(CODE_VARIABLE, "")):
            archive.mount(pod)


def would_be_shipped(request: Any) -> list[str]:
    """Returns what submitting a request would send, in a line for each piece of code."""
    shipments = getattr(request, "images_to_push", {}).values()
    return [one.would() for one in shipments if isinstance(one, Shipment)]


def annotation(shipments: Iterable[Any]) -> dict[str, str]:
    """Returns the annotation of a job with the digest of its code; empty without code."""
    digests = {one.code.digest: None for one in shipments if isinstance(one, Shipment)}
    return {CODE_ANNOTATION: ",".join(digests)} if digests else {}


def in_status(job: Mapping[str, Any]) -> list[str]:
    """Returns the words about a job's code for its status."""
    found = (job["metadata"].get("annotations") or {}).get(CODE_ANNOTATION, "")
    return [f"code {', '.join(map(short, found.split(',')))}"] if found else []
