"""Lists the files of a data set with their versions in storage, without a request per file."""

import heapq
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import glob_translate

from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.secrets import place, without_secrets
from trainer.core.storage import Storage, named, open_storage
from trainer.data.readers.base import Reader
from trainer.data.readers.formats import ENDS, NAMES, Format

HIDDEN = "hidden or temporary"
LISTED_ALREADY = "linked to what is listed already"
CLOSED = "closed to this user"
MARKS = (".", "_")


class LeftOutPaths:
    """Counts the paths that listings leave out, by reason, and remembers an example of each."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}
        self._lock = Lock()

    def add(self, reason: str, path: str) -> None:
        """Adds a path."""
        number, first = self._found.get(reason, (0, path))
        self._found[reason] = number + 1, min(first, path)

    def update(self, other: "LeftOutPaths") -> None:
        """Adds the paths of another."""
        with self._lock:
            for reason, (number, path) in other._found.items():
                before, first = self._found.get(reason, (0, path))
                self._found[reason] = before + number, min(first, path)

    def reasons(self) -> Iterator[str]:
        """Yields a text for each reason."""
        for reason, (number, path) in sorted(self._found.items()):
            others = f", and {number - 1:,} more" if number > 1 else ""
            yield f"left out {plural(number, 'path')}, {reason}: {without_secrets(path)}{others}"

    def report(self, key: str) -> None:
        """Prints a line for each reason, after the key or flag that named the files."""
        for reason in self.reasons():
            print(f"{key}: {reason}", flush=True)


class HiddenNames:
    """Recognizes hidden names, with a dot or an underscore in front; Spark, Dask and pyarrow.dataset leave them out.

    A name with `=` is not hidden: it is a partition of a column whose name begins like that.

    Args:
        asked_for: Names or globs that a pattern spells out, and that are therefore not hidden.
    """

    def __init__(self, asked_for: Collection[str] = ()) -> None:
        self._asked_for = [one for one in asked_for if one.startswith(MARKS)]

    def __contains__(self, name: str) -> bool:
        if not name.startswith(MARKS) or "=" in name:
            return False
        return not any(fnmatchcase(name, one) for one in self._asked_for)

    def on_the_way(self, path: str) -> bool:
        """Returns whether a relative path has a hidden name in it."""
        return any(name in self for name in path.split("/"))


def walk(
    top: str, wanted: Callable[[str], object], hidden: HiddenNames, left_out: LeftOutPaths, depth: int | None = None
) -> Iterator[os.DirEntry[str]]:
    """Yields files and directories below a directory, faster than fsspec's `find` and with a tenth of its memory.

    Links are followed last, so that a file gets the path without a linked directory if it has one. A link to a parent,
    or to a directory that was visited, is left out, so that the walk ends and visits no directory twice.

    Args:
        top: The directory.
        wanted: Returns whether to yield a path.
        hidden: Names to leave out.
        left_out: Counts the paths that are left out.
        depth: Number of levels to visit below the directory. Unset: all.
    """
    real_top = os.path.realpath(top)
    folders, links, walked = [(top, real_top, 1)], list[tuple[str, str, int]](), set[str]()
    while folders or links:
        if folders:
            folder, real, level = folders.pop()
        else:
            folder, place, level = heapq.heappop(links)
            real = os.path.realpath(folder)
            if _is_above(real, place) or _is_above(real, real_top):
                left_out.add(LISTED_ALREADY, folder)
                continue
        if real in walked:
            left_out.add(LISTED_ALREADY, folder)
            continue
        walked.add(real)
        try:
            entries = os.scandir(folder)
        except PermissionError:  # such as lost+found, which only root may list
            left_out.add(CLOSED, folder)
            continue
        goes_on = depth is None or level < depth
        with entries:
            for entry in entries:
                if entry.name in hidden:
                    if entry.is_dir() or wanted(entry.path):
                        left_out.add(HIDDEN, entry.path)
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if goes_on:
                        folders.append((entry.path, f"{real}/{entry.name}", level + 1))
                elif goes_on and entry.is_symlink() and entry.is_dir():
                    heapq.heappush(links, (entry.path, real, level + 1))
                if wanted(entry.path):
                    yield entry


def _is_above(folder: str, other: str) -> bool:
    """Returns whether a directory is a parent of another, or the same."""
    return f"{other}/".startswith(f"{folder.rstrip('/')}/")


# The keys for the version of a file in the records of fsspec's file systems.
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
    """Returns the version of a file from fsspec's record; empty if storage keeps no versions."""
    return next((str(info[key]) for key in VERSIONS if info.get(key) is not None), "")


def local_version(status: os.stat_result) -> str:
    """Returns the version of a file on a local disk.

    The version consists of two dates. Programs such as `cp -p` and `rsync -t` set the first, but cannot set the second.
    The inode is not used, because some mounted file systems number inodes anew at each mount.
    """
    return f"{status.st_mtime_ns} {status.st_ctime_ns}"


def version_at(fs: AbstractFileSystem, path: str) -> tuple[int, str]:
    """Returns the size of a file in bytes, and its version."""
    if isinstance(fs, LocalFileSystem):
        status = os.stat(path)
        return status.st_size, local_version(status)
    info = fs.info(path)
    return int(info["size"]), version_of(info)


LIST_THREADS = 16  # for patterns that name single files: each takes a request to storage, and there may be many

LISTED = pa.schema(
    [("url", pa.large_string()), ("size", pa.int64()), ("version", pa.large_string()), ("is_regular", pa.bool_())]
)
"""What storage says of each file: its size in bytes, null if unknown; its version, a date or an object store's mark,
empty if unknown; whether it is regular, which pipes, devices and directories on a local disk are not.
"""
Rows = tuple[list[str], list[int | None], list[Any], list[bool]]
"""The columns of `LISTED` as lists: as an object for each, a million files take twice as long."""
Infos = Mapping[str, Mapping[str, Any]]
"""fsspec's records of files, by path."""


def list_patterns(
    key: str, patterns: Sequence[str], reader: Reader, choose: Callable[[list[str]], list[str]] = list
) -> pa.Table:
    """Lists the files of patterns as `LISTED`, sorted by URL without duplicates; prints which paths are left out.

    Args:
        key: The key or flag that gave the patterns.
        patterns: Files, globs or directories, on any fsspec URL.
        reader: The reader of the files.
        choose: Returns the URLs to keep, in the same order.

    Raises:
        InputError: The same as `list_files`.
    """
    pa.array([])  # makes pyarrow import pandas before there are threads; see Loader
    left_out = LeftOutPaths()
    with ThreadPoolExecutor(LIST_THREADS) as pool:
        tables = pool.map(lambda pattern: list_files(key, pattern, reader, left_out), patterns)
        found = _sorted(pa.concat_tables(tables))
    left_out.report(key)
    urls = found["url"].to_pylist()
    chosen = choose(urls)
    return found if len(chosen) == len(urls) else found.filter(pc.is_in(found["url"], pa.array(chosen)))  # pyrefly: ignore


def list_files(key: str, pattern: str, reader: Reader, left_out: LeftOutPaths | None = None) -> pa.Table:
    """Lists the files of a file, glob or directory, as `LISTED`.

    Raises:
        InputError: There is no such file. The message names `key`.
    """
    here = LeftOutPaths()
    if len(found := matching_files(key, pattern, reader, here)):
        if left_out:
            left_out.update(here)
        return found
    why = "".join(f" ({reason})" for reason in here.reasons())
    others = [name for name, ends in ENDS.items() if len(matching_files(key, pattern, Format(ends)))]
    remedy = (
        f"it has files of {NAMES[others[0]]}, which data.reader '{others[0]}' reads"
        if others
        else "check the path, or make the data set first"
    )
    raise InputError(f"{key}: no {reader.format} file at {place(pattern)}{why}; {remedy}")


def matching_files(key: str, pattern: str, reader: Reader | Format, left_out: LeftOutPaths | None = None) -> pa.Table:
    """Lists the files of a file, glob or directory, which need not exist, as `LISTED`, sorted by URL.

    Args:
        key: The key or flag that gave the pattern.
        pattern: A file, glob or directory, on any fsspec URL.
        reader: The reader of the files.
        left_out: Counts the paths that are left out.
    """
    left_out = left_out or LeftOutPaths()
    with named(key, pattern):
        fs, path = open_storage(pattern)
        if "*" in path or "?" in path:
            names, sizes, versions, are_regular = files_of_glob(fs, path, left_out)
        else:
            names, sizes, versions, are_regular = _file_or_below(fs, path, _ends(reader), left_out)
    urls = [fs.url_of(name) for name in names] if "://" in pattern else names
    texts = pa.array(versions).cast(pa.large_string()).fill_null("")
    return _sorted(pa.table([urls, sizes, texts, are_regular], LISTED))


def _ends(reader: Reader | Format) -> tuple[str, ...]:
    """Returns the endings of the names of a reader's files, in lower case."""
    ends = (reader.suffix,) if isinstance(reader.suffix, str) else reader.suffix
    return tuple(end.lower() for end in ends)


def _sorted(files: pa.Table) -> pa.Table:
    """Sorts files by URL and removes duplicates."""
    files = files.take(pc.sort_indices(files["url"])).combine_chunks()  # pyrefly: ignore[missing-attribute]
    urls = files["url"]
    is_first = pc.not_equal(urls[1:], urls[:-1]).to_numpy()  # pyrefly: ignore[missing-attribute]
    return files if is_first.all() else files.filter(pa.array([True, *is_first]))


def _file_or_below(fs: Storage, path: str, ends: tuple[str, ...], left_out: LeftOutPaths) -> Rows:
    """Lists a file, or the files below a directory; needs a single request if the name looks like a file's."""
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return [], [], [], []
    # `info` takes a directory of an HTTP server for a file.
    if info["type"] == "directory" or (not path.lower().endswith(ends) and fs.isdir(path)):
        return _below(fs, path, ends, left_out)
    return _local_rows([path]) if fs.is_local else _rows({path: info})


def _below(fs: Storage, path: str, ends: tuple[str, ...], left_out: LeftOutPaths) -> Rows:
    """Lists the files below a directory."""
    hidden = HiddenNames()
    if fs.is_local:
        entries = walk(path, lambda found: found.lower().endswith(ends), hidden, left_out)
        return _local_rows(entry for entry in entries if not entry.is_dir())
    found = {name: info for name, info in fs.find(path, detail=True).items() if name.lower().endswith(ends)}
    return _rows(_without_hidden(found, path, hidden, left_out))


def files_of_glob(fs: Storage, path: str, left_out: LeftOutPaths) -> Rows:
    """Lists the files and directories that a glob matches; follows linked directories."""
    top = re.split("[*?[]", path, maxsplit=1)[0].rpartition("/")[0]
    below = path.removeprefix(top).lstrip("/").split("/")
    hidden = HiddenNames(below)
    if not fs.is_local:
        return _rows(_without_hidden(fs.glob(path, detail=True), top, hidden, left_out))
    if not os.path.isdir(top or "/"):
        return [], [], [], []
    matches = re.compile(glob_translate(path)).match
    return _local_rows(walk(top or "/", matches, hidden, left_out, None if "**" in below else len(below)))


def _without_hidden(found: Infos, top: str, hidden: HiddenNames, left_out: LeftOutPaths) -> Infos:
    """Removes files that have a hidden name in their path below a directory."""
    kept: dict[str, Mapping[str, Any]] = {}
    for name, info in found.items():
        if hidden.on_the_way(name.removeprefix(top)):
            left_out.add(HIDDEN, name)
        else:
            kept[name] = info
    return kept


def _local_rows(entries: Iterable[os.DirEntry[str] | str]) -> Rows:
    """Lists files of a local disk. A million files take 3 s; fsspec's `find` takes 8 s and 800 MB."""
    names, sizes, versions, are_regular = rows = [], [], [], []
    for entry in entries:
        status = _status(entry)
        names.append(os.fspath(entry))
        sizes.append(status and status.st_size)
        versions.append(status and local_version(status))
        are_regular.append(status is None or stat.S_ISREG(status.st_mode))
    return rows


def _status(entry: os.DirEntry[str] | str) -> os.stat_result | None:
    try:
        return os.stat(entry) if isinstance(entry, str) else entry.stat()
    except OSError:  # a broken link; the reader will report it
        return None


def _rows(found: Infos) -> Rows:
    """Converts fsspec's records of files to `LISTED`."""
    infos = found.values()
    return [*found], [info.get("size") for info in infos], [*map(version_of, infos)], [True] * len(found)
