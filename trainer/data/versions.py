"""The version of a file by what storage says of it: whether a file is the one that was read before."""

import os
from collections.abc import Mapping
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

# The file systems' names for the version of a file.
VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "md5Hash",
    "content_md5",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)


def version_of(info: Mapping[str, Any]) -> str:
    """Returns the version of a file in fsspec's record of it, empty if storage has none."""
    return next((str(info[key]) for key in VERSIONS if info.get(key) is not None), "")


def local_version(status: os.stat_result) -> str:
    """Returns the version of a file on a local disk.

    By two dates: programs set the first, such as `cp -p` and `rsync -t`, and nobody the second. Not by the inode, which
    some mounted file systems number anew at each mount.
    """
    return f"{status.st_mtime_ns} {status.st_ctime_ns}"


def version_at(fs: AbstractFileSystem, path: str) -> tuple[int, str]:
    """Returns the size of a file in bytes, and its version."""
    if isinstance(fs, LocalFileSystem):
        status = os.stat(path)
        return status.st_size, local_version(status)
    info = fs.info(path)
    return int(info["size"]), version_of(info)
