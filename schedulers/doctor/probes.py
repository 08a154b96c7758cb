"""Checks with imports that are slow or may crash, each run in its own process: `probes NAME [URL]`."""

import json
import os
import sys
import warnings
from typing import Any

CONTENT = b"written by torchx doctor"
TIMEOUT_SECONDS = (5, 10)


def torch() -> None:
    """Loads torch, fbgemm-gpu and torchrec, and prints the version of CUDA and the GPUs that torch sees, as JSON."""
    warnings.simplefilter("ignore")

    import fbgemm_gpu  # noqa: F401
    import torch
    import torchrec.distributed  # noqa: F401

    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    print(json.dumps({"cuda": torch.version.cuda, "gpus": names}))


def kubernetes() -> None:
    """Prints the address, the version and the API groups of the current Kubernetes cluster, as JSON.

    Also whether JobSet is new enough, by the API's description: every user may read it, CustomResourceDefinitions not.
    """
    from kubernetes import client, config

    from schedulers.jobset.names import GROUP, VERSION
    from schedulers.jobset.restarts import MESSAGE_PATTERNS

    config.load_config()
    settings = client.Configuration.get_default_copy()
    settings.retries = False
    api = client.ApiClient(settings)
    version: Any = client.VersionApi(api).get_code(_request_timeout=TIMEOUT_SECONDS)
    groups: Any = client.ApisApi(api).get_api_versions(_request_timeout=TIMEOUT_SECONDS)
    names = [group.name for group in groups.groups]
    described = ""
    if GROUP in names:
        headers = {each["key"]: each["value"] for each in settings.auth_settings().values()}
        page = f"{settings.host}/openapi/v3/apis/{GROUP}/{VERSION}"
        described = str(api.rest_client.request("GET", page, headers=headers, _request_timeout=TIMEOUT_SECONDS).data)
    found = {"host": settings.host, "version": version.git_version, "groups": names}
    print(json.dumps(found | {"jobset_is_current": MESSAGE_PATTERNS in described}))


def readable(url: str) -> None:
    """Fails if a path, glob or URL names nothing."""
    from fsspec.core import url_to_fs

    files, path = url_to_fs(url)
    if not files.exists(path) and not files.glob(path):
        raise FileNotFoundError("there is nothing of this name")


def writable(url: str) -> None:
    """Writes, reads and removes a file in a directory, or in the nearest directory above that exists."""
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    files, folder = url_to_fs(url)
    while isinstance(files, LocalFileSystem) and not files.exists(folder):
        folder = files._parent(folder)
    probe = f"{folder.rstrip('/')}/.torchx-doctor-{os.getpid()}"
    files.pipe_file(probe, CONTENT)
    assert files.cat_file(probe) == CONTENT
    files.rm_file(probe)


if __name__ == "__main__":
    _, name, *arguments = sys.argv
    {each.__name__: each for each in (torch, kubernetes, readable, writable)}[name](*arguments)
