"""Code as a layer: an image with one layer more than its base, pushed without Docker and without reading the base."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from schedulers.code.files import CODE_DIR, Code, in_units, short
from schedulers.code.registry import DOCKER, INDEXES, MANIFESTS, OCI, Reference, RegistryError, Repository
from schedulers.errors import SchedulerError

ARCHITECTURE = "kubernetes.io/arch"  # label of nodes
CODE_LABEL = "torchx-recsys.code"


@dataclass
class Layer:
    """An image to be pushed.

    Attributes:
        code: The code in its last layer.
        base: The image below it, by digest.
        target: The repository to push to.
        manifest: The manifest of the new image.
        config: Its configuration.
    """

    code: Code
    base: Reference
    target: Repository
    manifest: bytes
    config: bytes

    @property
    def image(self) -> str:
        """The name of the image, by digest: what a pod runs is what was submitted, whatever becomes of a tag."""
        return f"{self.target.host}/{self.target.path}@{_digest(self.manifest)}"

    def would(self) -> str:
        """Returns what submitting the job would push."""
        return f"{self.code} would be pushed to {self.image}, as a layer on {self.base.host}/{self.base.path}"

    def ship(self, say: Callable[[str], None]) -> None:
        """Pushes what the repository does not have yet.

        Raises:
            SchedulerError: The registry refuses or cannot be reached.
        """
        try:
            if self.target.has("manifests", _digest(self.manifest)):
                say(f"{self.code} is already in {self.image}")
                return
            self._bring_base(say)
            self._put(self.code.packed_digest, self.code.packed)
            self._put(_digest(self.config), self.config)
            manifest_type = json.loads(self.manifest)["mediaType"]
            self.target.put_manifest(f"code-{short(_digest(self.manifest))}", self.manifest, manifest_type)
            say(f"{self.code} pushed to {self.image}")
        except RegistryError as error:
            raise SchedulerError(f"-cfg image_repo={self.target.host}/{self.target.path}: {error}") from error

    def _bring_base(self, say: Callable[[str], None]) -> None:
        """Gives the repository the layers of the base: by reference in the same registry, else as a copy."""
        layers = {one["digest"]: one["size"] for one in json.loads(self.manifest)["layers"][:-1]}
        missing = {digest: size for digest, size in layers.items() if not self.target.has("blobs", digest)}
        source = Repository(self.base.host, self.base.path)
        if self.base.host == self.target.host:
            missing = {one: size for one, size in missing.items() if not self.target.mount(one, self.base.path)}
        if missing:
            place = f"{self.base.host}/{self.base.path} to {self.target.host}/{self.target.path}"
            say(f"copies {len(missing)} layers of the base, {in_units(sum(missing.values()))}, from {place}, once")
        for digest, size in missing.items():
            self.target.copy(digest, size, source)

    def _put(self, digest: str, content: Any) -> None:
        if not self.target.has("blobs", digest):
            if not isinstance(content, bytes):
                content.seek(0)
            self.target.put(digest, content)


def layer_on(image: str, code: Code, image_repo: str, node_labels: dict[str, str]) -> Layer:
    """Returns the image with the code on top of another; reads the base's manifest, and pushes nothing.

    Args:
        image: The base. Of an image for several platforms, that of the nodes' architecture, amd64 by default.
        code: The code.
        image_repo: The repository to push to.
        node_labels: Labels that the job's nodes have.

    Raises:
        SchedulerError: A name is malformed, or the base cannot be read.
    """
    wanted = Reference.parse(image_repo, "-cfg image_repo=")
    if ":" in image_repo.rpartition("/")[2] or "@" in image_repo:
        raise SchedulerError(f"-cfg image_repo={image_repo}: must be a repository, without a tag")
    base = Reference.parse(image, "--image ")
    source = Repository(base.host, base.path)
    try:
        media_type, manifest, digest = source.manifest(base.version)
        if media_type in INDEXES:
            version = _of_platform(manifest, node_labels.get(ARCHITECTURE, "amd64"), image)
            media_type, manifest, digest = source.manifest(version)
        if media_type not in MANIFESTS:
            raise SchedulerError(f"--image {image}: must have a manifest of OCI or of Docker's schema 2: {media_type}")
        config = json.loads(source.read(manifest["config"]["digest"]))
    except RegistryError as error:
        reason = f"there is no such image in {base.host}" if error.status == 404 else error
        raise SchedulerError(f"--image {image}: {reason}") from error
    base = Reference(base.host, base.path, digest)
    new_config = _config(config, code, base)
    target = Repository(wanted.host, wanted.path)
    return Layer(code, base, target, _manifest(manifest, media_type, new_config, code, base), new_config)


def _of_platform(index: dict[str, Any], architecture: str, image: str) -> str:
    """Returns the digest of the image for Linux on an architecture."""
    platforms = {one["digest"]: one.get("platform", {}) for one in index["manifests"]}
    for digest, platform in platforms.items():
        if (platform.get("os"), platform.get("architecture")) == ("linux", architecture):
            return digest
    there = ", ".join(sorted({f"{one.get('os')}/{one.get('architecture')}" for one in platforms.values()}))
    raise SchedulerError(f"--image {image}: must have linux/{architecture}, and has {there}")


def _config(config: dict[str, Any], code: Code, base: Reference) -> bytes:
    """Returns the new image's configuration: the base's, with the code as its directory and first on PYTHONPATH."""
    run = config.get("config") or {}
    env = dict(one.split("=", 1) for one in run.get("Env") or ())
    env["PYTHONPATH"] = ":".join(filter(None, [CODE_DIR, env.get("PYTHONPATH")]))
    labels = (run.get("Labels") or {}) | {CODE_LABEL: code.digest, **_base_labels(base)}
    run |= {"Env": [f"{name}={value}" for name, value in env.items()], "WorkingDir": CODE_DIR, "Labels": labels}
    rootfs = config["rootfs"] | {"diff_ids": [*config["rootfs"]["diff_ids"], code.digest]}
    step = {"created": config.get("created", "1970-01-01T00:00:00Z"), "created_by": f"torchx-recsys {code.digest}"}
    history = {"history": [*config["history"], step]} if "history" in config else {}
    return _json(config | {"config": run, "rootfs": rootfs} | history)


def _manifest(manifest: dict[str, Any], media_type: str, config: bytes, code: Code, base: Reference) -> bytes:
    of_oci = media_type.startswith(OCI)
    layer_type = f"{OCI}.layer.v1.tar+gzip" if of_oci else f"{DOCKER}.image.rootfs.diff.tar.gzip"
    layer = {"mediaType": layer_type, "digest": code.packed_digest, "size": code.size}
    new = manifest | {
        "mediaType": media_type,
        "config": manifest["config"] | {"digest": _digest(config), "size": len(config)},
        "layers": [*manifest["layers"], layer],
    }
    return _json(new | ({"annotations": manifest.get("annotations", {}) | _base_labels(base)} if of_oci else {}))


def _base_labels(base: Reference) -> dict[str, str]:
    name = f"{base.host}/{base.path}"
    return {"org.opencontainers.image.base.name": name, "org.opencontainers.image.base.digest": base.version}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
