"""Lists the files of a data set, each with what storage says of it, without a request for each file."""

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import Storage, named, open_storage
from trainer.data.readers.base import Reader

LIST_THREADS = 16  # of patterns that are single files, each asks storage
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


LISTED = pa.schema(
    [("url", pa.large_string()), ("size", pa.int64()), ("version", pa.large_string()), ("is_regular", pa.bool_())]
)
"""What storage says of each file: its size in bytes, null if unknown; its version, a date or an object store's mark,
empty if unknown; whether it is regular, which pipes, devices and directories on a local disk are not.
"""
Rows = tuple[list[str], list[int | None], list[Any], list[bool]]
"""The columns of `LISTED` as lists: as an object for each, a million files take twice as long."""


def list_patterns(
    key: str, patterns: Sequence[str], reader: Reader, choose: Callable[[list[str]], list[str]] = list
) -> pa.Table:
    """Returns the files of patterns as `LISTED`, sorted by URL, each once; takes and raises the same as `list_files`.

    Args:
        key: The key or flag that gave the patterns.
        patterns: Files, globs or directories, on any fsspec URL.
        reader: The reader of the files.
        choose: Returns the URLs to keep, in their order.
    """
    pa.array([])  # now, in one thread, pyarrow imports pandas, where that is installed; see Loader
    with ThreadPoolExecutor(LIST_THREADS) as pool:
        found = _sorted(pa.concat_tables(pool.map(lambda pattern: list_files(key, pattern, reader), patterns)))
    urls = found["url"].to_pylist()
    chosen = choose(urls)
    return found if len(chosen) == len(urls) else found.filter(pc.is_in(found["url"], pa.array(chosen)))  # pyrefly: ignore


def list_files(key: str, pattern: str, reader: Reader) -> pa.Table:
    """Returns the files of a file, glob or directory, as `LISTED`.

    Raises:
        InputError: There is no such file. The message names `key`.
    """
    if len(found := matching_files(key, pattern, reader)):
        return found
    raise InputError(
        f"{key}: no {reader.format} file at '{without_secrets(pattern)}'; check the path, or make the data set first"
    )


def matching_files(key: str, pattern: str, reader: Reader) -> pa.Table:
    """Returns the files of a file, glob or directory, which need not exist, as `LISTED`, sorted by URL."""
    with named(key, pattern):
        fs, path = open_storage(pattern)
        if "*" in path or "?" in path:
            rows = _rows(fs, fs.glob(path, detail=True))
        else:
            rows = _file_or_below(fs, path, reader.suffix)
    names, sizes, versions, are_regular = rows
    urls = [fs.url_of(name) for name in names] if "://" in pattern else names
    texts = pa.array(versions).cast(pa.large_string()).fill_null("")
    return _sorted(pa.table([urls, sizes, texts, are_regular], LISTED))


def _sorted(files: pa.Table) -> pa.Table:
    """Returns files sorted by URL, each once."""
    files = files.take(pc.sort_indices(files["url"])).combine_chunks()  # pyrefly: ignore[missing-attribute]
    urls = files["url"]
    is_first = pc.not_equal(urls[1:], urls[:-1]).to_numpy()  # pyrefly: ignore[missing-attribute]
    return files if is_first.all() else files.filter(pa.array([True, *is_first]))


def version_of(info: Mapping[str, Any]) -> str:
    """Returns the version of a file in fsspec's record of it, empty if storage has none."""
    return next((str(info[key]) for key in VERSIONS if info.get(key) is not None), "")


def _file_or_below(fs: Storage, path: str, suffix: str | tuple[str, ...]) -> Rows:
    """Returns a file, or the files below a directory; one request for a file that is named like one."""
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return [], [], [], []
    # By `info`, a directory of an HTTP server is a file.
    if info["type"] == "directory" or (not path.endswith(suffix) and fs.isdir(path)):
        return _below(fs, path, suffix)
    return _rows(fs, {path: info})


def _below(fs: Storage, path: str, suffix: str | tuple[str, ...]) -> Rows:
    """Returns the files below a directory."""
    if fs.is_local:
        return _below_local(path, suffix)
    return _rows(fs, {name: info for name, info in fs.find(path, detail=True).items() if name.endswith(suffix)})


def _below_local(path: str, suffix: str | tuple[str, ...]) -> Rows:
    """Does the same on a local disk: a million files take 3 s; fsspec's `find` takes 8 s and 800 MB."""
    names, sizes, versions, are_regular = rows = [], [], [], []
    folders = [path]
    while folders:
        try:
            entries = os.scandir(folders.pop())
        except PermissionError:  # such as lost+found, which only root may list
            continue
        with entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.name.endswith(suffix):
                    status = _status(entry)
                    names.append(entry.path)
                    sizes.append(status and status.st_size)
                    versions.append(status and status.st_mtime_ns)
                    are_regular.append(status is None or stat.S_ISREG(status.st_mode))
    return rows


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:  # a broken link, which the reader will name
        return None


def _rows(fs: Storage, found: Mapping[str, Mapping[str, Any]]) -> Rows:
    """Returns files by fsspec's records of them."""
    names, sizes, versions, are_regular = rows = [], [], [], []
    for name, info in found.items():
        size, version, is_regular = _facts(fs, name, info)
        names.append(name)
        sizes.append(size)
        versions.append(version)
        are_regular.append(is_regular)
    return rows


def _facts(fs: Storage, name: str, info: Mapping[str, Any]) -> tuple[int | None, str, bool]:
    if fs.is_local and info["islink"]:  # a listing has the date of the link, not of its target
        if not fs.exists(name):
            return None, "", True
        info = fs.info(name)
    return info.get("size"), version_of(info), not fs.is_local or info["type"] == "file"
