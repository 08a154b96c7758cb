"""Advice on errors of storage, for the end of their messages."""

import errno

import fsspec
from fsspec.core import split_protocol

from trainer.core.errors import DamagedError

EXTRAS = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gcs"),
    **dict.fromkeys(("abfs", "abfss", "az", "adl"), "azure"),
}
"""Extra of this package that installs each protocol's file system."""
NO_DIRECTORY = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
SOME_PATHS = "write a local path, or a URL such as s3://BUCKET/PATH, gs://BUCKET/PATH or abfs://CONTAINER/PATH"


def remedy(error: Exception, url: str) -> str:
    """Returns the remedy for an unusable URL.

    Args:
        error: The error of the URL.
        url: The URL, or a local path.
    """
    if isinstance(error, DamagedError):
        return "put a copy of the file back"
    if url.rstrip("/").endswith(":"):
        return SOME_PATHS
    protocol = split_protocol(url.rpartition("::")[2])[0] or "file"
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError:
        extra = EXTRAS.get(protocol)
        return f"pip install 'torchx-recsys[{extra}]'" if extra else "install that package"
    except ValueError:
        return SOME_PATHS
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, PermissionError) or number == errno.EROFS:
        return "grant this user access to it, or name a path that it has access to"
    if isinstance(error, FileNotFoundError):
        return "name a path that exists, or one that can be made"
    if number in NO_DIRECTORY:
        return "name a path without a file where a directory is needed"
    if number in FULL:
        return "free some space, or name a path on another disk"
    if "::" in url:
        return "check each part of the URL; to write, name a directory or a URL without '::'"
    if protocol in ("file", "local"):
        return "repair it, or name a path on another disk"
    return "check the URL, the network and the credentials"
