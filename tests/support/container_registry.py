"""A container registry of its own for tests: Debian's docker-registry, with an image that tests have made."""

import base64
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests
import yaml
from ports import free_port

OCI, DOCKER = "application/vnd.oci.image", "application/vnd.docker"
USER, PASSWORD = "me", "my-password"
# As `htpasswd -B` writes it.
HTPASSWD = "me:$2b$05$grOYEVMAyPvWA7.a6hsvRe5FKyCmJ5ZVtoxiYQ/ML5QtJ/vcuUIc6"


@dataclass
class Registry:
    """A registry that runs.

    Attributes:
        host: Its host and port.
        folder: Its data.
        log: What it prints, with a line for each request.
    """

    host: str
    folder: Path
    log: Path

    def uploads(self) -> int:
        """The number of blobs and manifests that were uploaded so far."""
        return sum('"http.request.method":"PUT"' in line and "response completed" in line for line in self._lines())

    def _lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def push_base(self, path: str, media: str = OCI, layers: tuple[bytes, ...] = (b"base",), tag: str = "1") -> str:
        """Makes an image whose layers each have one file with these contents; returns its digest."""
        url, auth = f"http://{self.host}/v2/{path}", (USER, PASSWORD)
        packed = [_layer(f"base-{number}", content) for number, content in enumerate(layers)]
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin:/bin", "PYTHONPATH=/base"], "WorkingDir": "/work", "User": "1000"},
            "rootfs": {"type": "layers", "diff_ids": [_digest(gzip.decompress(one)) for one in packed]},
        }
        text = json.dumps(config).encode()
        for blob in (text, *packed):
            place = requests.post(f"{url}/blobs/uploads/", auth=auth).headers["Location"]
            requests.put(place, params={"digest": _digest(blob)}, data=blob, auth=auth).raise_for_status()
        names = {OCI: ("manifest.v1+json", "config.v1+json", "layer.v1.tar+gzip")}
        names[DOCKER] = ("distribution.manifest.v2+json", "container.image.v1+json", "image.rootfs.diff.tar.gzip")
        manifest, config_type, layer_type = (f"{media}.{name}" for name in names[media])
        content = {
            "schemaVersion": 2,
            "mediaType": manifest,
            "config": {"mediaType": config_type, "digest": _digest(text), "size": len(text)},
            "layers": [{"mediaType": layer_type, "digest": _digest(one), "size": len(one)} for one in packed],
        }
        return self.put_manifest(path, tag, content)

    def put_manifest(self, path: str, tag: str, content: dict) -> str:
        """Uploads a manifest or an index as it is; returns its digest."""
        data, headers = json.dumps(content).encode(), {"Content-Type": content["mediaType"]}
        url = f"http://{self.host}/v2/{path}/manifests/{tag}"
        requests.put(url, data=data, headers=headers, auth=(USER, PASSWORD)).raise_for_status()
        return _digest(data)


@contextmanager
def container_registry(folder: Path, data: Path | None = None, **settings: object) -> Iterator[Registry]:
    """Starts a registry.

    Args:
        folder: For its files.
        data: Its data, that of another registry; its own if unset.
        settings: Sections of its configuration.
    """
    if not shutil.which("docker-registry"):
        pytest.skip("needs docker-registry: apt-get install docker-registry")
    host = f"127.0.0.1:{free_port()}"
    storage = {"filesystem": {"rootdirectory": str(data or folder / "data")}, **settings.pop("storage", {})}
    tree = {"version": 0.1, "log": {"formatter": "json", "level": "info"}, "http": {"addr": host}, "storage": storage}
    (folder / "registry.yml").write_text(yaml.safe_dump(tree | settings))
    log = folder / "registry.log"
    with (
        log.open("w") as output,
        subprocess.Popen(
            ["docker-registry", "serve", str(folder / "registry.yml")], stdout=output, stderr=output
        ) as process,
    ):
        try:
            while process.poll() is None:
                with suppress(requests.ConnectionError):
                    requests.get(f"http://{host}/v2/")
                    break
                time.sleep(0.05)
            assert process.poll() is None, log.read_text()
            yield Registry(host, data or folder / "data", log)
        finally:
            process.kill()


def credentials(folder: Path, host: str, password: str = PASSWORD) -> dict[str, str]:
    """What a process needs to use the credentials that `docker login` has written into a folder."""
    auth = base64.b64encode(f"{USER}:{password}".encode()).decode()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth}}}))
    return {"DOCKER_CONFIG": str(folder)}


def _layer(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
