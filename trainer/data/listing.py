"""Lists the files of a data set, each with what storage says of it, without a request for each file."""

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.utils import glob_translate

from trainer.core.errors import InputError
from trainer.core.secrets import place
from trainer.core.storage import Storage, named, open_storage
from trainer.data.left_out import HIDDEN, HiddenNames, LeftOutPaths
from trainer.data.readers.base import Reader
from trainer.data.readers.formats import ENDS, NAMES, Format
from trainer.data.versions import local_version, version_of
from trainer.data.walk import walk

LIST_THREADS = 16  # of patterns that are single files, each asks storage


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
