"""Lists the files of a data set, each with its version in storage, without a request for each file."""

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
    """The paths that listings leave out, by the reason: their number, and one to name."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}
        self._lock = Lock()

    def add(self, reason: str, path: str) -> None:
        """Adds a path."""
        number, first = self._found.get(reason, (0, path))
        self._found[reason] = number + 1, min(first, path)

    def update(self, other: "LeftOutPaths") -> None:
        """Adds what another has."""
        with self._lock:
            for reason, (number, path) in other._found.items():
                before, first = self._found.get(reason, (0, path))
                self._found[reason] = before + number, min(first, path)

    def reasons(self) -> Iterator[str]:
        """Yields a text for each reason."""
        for reason, (number, path) in sorted(self._found.items()):
            others = f", and {number - 1:,} more" if number > 1 else ""
            yield f"left out {plural(number, 'path')}, {reason}: {without_secrets(path)}{others}"


class HiddenNames:
    """Tells the names that Spark, Dask and pyarrow.dataset leave out: those with a dot or an underscore in front.

    Not those with `=`, which are partitions of a column with such a name.

    Args:
        asked_for: Names or globs that a pattern has in so many words.
    """

    def __init__(self, asked_for: Collection[str] = ()) -> None:
        self._asked_for = [one for one in asked_for if one.startswith(MARKS)]

    def __contains__(self, name: str) -> bool:
        if not name.startswith(MARKS) or "=" in name:
            return False
        return not any(fnmatchcase(name, one) for one in self._asked_for)

    def on_the_way(self, path: str) -> bool:
        """Returns whether a relative path has a hidden name."""
        return any(name in self for name in path.split("/"))


def walk(
    top: str, wanted: Callable[[str], object], hidden: HiddenNames, left_out: LeftOutPaths, depth: int | None = None
) -> Iterator[os.DirEntry[str]]:
    """Yields files and directories below a directory; faster than fsspec's `find` and in a tenth of the memory.

    Links are followed last, so that a file keeps the path that has no linked directory in it. A link that leads up, or
    to what was walked through, is left out, so that no walk goes in a loop, or through a directory twice.

    Args:
        top: The directory.
        wanted: Whether to yield what has this path.
        hidden: Names to leave out.
        left_out: Gets what is left out.
        depth: Levels below the directory to walk through. Unset: all.
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
    """Returns whether a directory is another, or has it somewhere in it."""
    return f"{other}/".startswith(f"{folder.rstrip('/')}/")


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


LIST_THREADS = 16  # a pattern that is a single file is a request to storage, and there may be many

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
    """Returns the files of patterns as `LISTED`, sorted by URL, each once, and prints what directories leave out.

    Args:
        key: The key or flag that gave the patterns.
        patterns: Files, globs or directories, on any fsspec URL.
        reader: The reader of the files.
        choose: Returns the URLs to keep, in their order.

    Raises:
        InputError: The same as `list_files`.
    """
    pa.array([])  # now, in one thread, pyarrow imports pandas, where that is installed; see Loader
    left_out = LeftOutPaths()
    with ThreadPoolExecutor(LIST_THREADS) as pool:
        tables = pool.map(lambda pattern: list_files(key, pattern, reader, left_out), patterns)
        found = _sorted(pa.concat_tables(tables))
    for reason in left_out.reasons():
        print(f"{key}: {reason}", flush=True)
    urls = found["url"].to_pylist()
    chosen = choose(urls)
    return found if len(chosen) == len(urls) else found.filter(pc.is_in(found["url"], pa.array(chosen)))  # pyrefly: ignore


def list_files(key: str, pattern: str, reader: Reader, left_out: LeftOutPaths | None = None) -> pa.Table:
    """Returns the files of a file, glob or directory, as `LISTED`.

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
    """Returns the files of a file, glob or directory, which need not exist, as `LISTED`, sorted by URL.

    Args:
        key: The key or flag that gave the pattern.
        pattern: A file, glob or directory, on any fsspec URL.
        reader: The reader of the files.
        left_out: Gets what a directory or a glob leaves out.
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
    """Returns the ends of the names of a reader's files, in small letters."""
    ends = (reader.suffix,) if isinstance(reader.suffix, str) else reader.suffix
    return tuple(end.lower() for end in ends)


def _sorted(files: pa.Table) -> pa.Table:
    """Returns files sorted by URL, each once."""
    files = files.take(pc.sort_indices(files["url"])).combine_chunks()  # pyrefly: ignore[missing-attribute]
    urls = files["url"]
    is_first = pc.not_equal(urls[1:], urls[:-1]).to_numpy()  # pyrefly: ignore[missing-attribute]
    return files if is_first.all() else files.filter(pa.array([True, *is_first]))


def _file_or_below(fs: Storage, path: str, ends: tuple[str, ...], left_out: LeftOutPaths) -> Rows:
    """Returns a file, or the files below a directory; one request for a file that is named like one."""
    try:
        info = fs.info(path)
    except FileNotFoundError:
        return [], [], [], []
    # By `info`, a directory of an HTTP server is a file.
    if info["type"] == "directory" or (not path.lower().endswith(ends) and fs.isdir(path)):
        return _below(fs, path, ends, left_out)
    return _local_rows([path]) if fs.is_local else _rows({path: info})


def _below(fs: Storage, path: str, ends: tuple[str, ...], left_out: LeftOutPaths) -> Rows:
    """Returns the files below a directory."""
    hidden = HiddenNames()
    if fs.is_local:
        entries = walk(path, lambda found: found.lower().endswith(ends), hidden, left_out)
        return _local_rows(entry for entry in entries if not entry.is_dir())
    found = {name: info for name, info in fs.find(path, detail=True).items() if name.lower().endswith(ends)}
    return _rows(_without_hidden(found, path, hidden, left_out))


def files_of_glob(fs: Storage, path: str, left_out: LeftOutPaths) -> Rows:
    """Returns the files and directories that a glob matches; linked directories are followed."""
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
    """Returns files without those that have a hidden name below a directory."""
    kept: dict[str, Mapping[str, Any]] = {}
    for name, info in found.items():
        if hidden.on_the_way(name.removeprefix(top)):
            left_out.add(HIDDEN, name)
        else:
            kept[name] = info
    return kept


def _local_rows(entries: Iterable[os.DirEntry[str] | str]) -> Rows:
    """Returns files of a local disk: a million files take 3 s; fsspec's `find` takes 8 s and 800 MB."""
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
    except OSError:  # a broken link, which the reader will name
        return None


def _rows(found: Infos) -> Rows:
    """Returns files by fsspec's records of them."""
    infos = found.values()
    return [*found], [info.get("size") for info in infos], [*map(version_of, infos)], [True] * len(found)
