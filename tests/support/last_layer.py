"""The last layer of an image in a registry on this machine, as a node would have it."""

import io
import tarfile
from pathlib import Path

import requests
from container_registry import PASSWORD, USER


def pull(image: str, folder: Path) -> dict:
    """Unpacks the last layer of an image into a folder, and returns the image's directory and variables."""
    name, digest = image.split("@")
    host, path = name.split("/", 1)
    url = f"http://{host}/v2/{path}"
    accept = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"
    manifest = _get(f"{url}/manifests/{digest}", Accept=accept).json()
    layer = _get(f"{url}/blobs/{manifest['layers'][-1]['digest']}").content
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        tar.extractall(folder)
    config = _get(f"{url}/blobs/{manifest['config']['digest']}").json()["config"]
    return {"WorkingDir": config["WorkingDir"], "Env": dict(one.split("=", 1) for one in config["Env"])}


def _get(url: str, **headers: str) -> requests.Response:
    answer = requests.get(url, headers=headers, auth=(USER, PASSWORD))
    answer.raise_for_status()
    return answer
