"""Segments of data, such as days: finds them, and checks whether they are complete or have changed."""

import hashlib
import posixpath
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from trainer.config.data import DataConfig
from trainer.config.files import NAME, SegmentsConfig
from trainer.core.storage import named, open_storage
from trainer.data.listing import HiddenNames, LeftOutPaths, matching_files
from trainer.data.readers.formats import make_reader

KEY = "data.segments.path"
# A copy changes names and paths, but not bytes. Size, beginning and end identify a file of any format without reading
# it whole: a Parquet file ends with its footer, which has the sizes and bounds of all columns.
END_BYTES = 1 << 16


@dataclass(frozen=True)
class Segment:
    """A segment as storage lists it.

    Attributes:
        name: The part of its path that {segment} stands for.
        files: URLs of its files, sorted.
        fingerprint: A digest that changes with the names and sizes of the files.
        lacks: The reason why the segment is not complete; empty if it is.
        left_out: The files in its directory that are left out, with the reasons.
    """

    name: str
    files: tuple[str, ...]
    fingerprint: str
    lacks: str
    left_out: tuple[str, ...] = ()


def names_of_segments(config: SegmentsConfig) -> list[str]:
    """Returns the names of the segments between `first` and `until`, in order, whether complete or not.

    Raises:
        InputError: The path cannot be used.
        StorageError: The storage cannot be read now.
    """
    assert config.path
    part = _part(config.path)
    with named(KEY, config.path):
        fs, pattern = open_storage(part.replace(NAME, "*"))
        form = re.compile(re.escape(open_storage(part)[1]).replace(re.escape(NAME), "([^/]+)"))
        hidden = HiddenNames([posixpath.basename(pattern)])
        found = [path.rstrip("/") for path in fs.glob(pattern)]
        matches = [form.fullmatch(path) for path in found if posixpath.basename(path) not in hidden]
    names = sorted(match[1] for match in matches if match)
    return [
        name
        for name in names
        if (config.first is None or name >= config.first) and (config.until is None or name <= config.until)
    ]


def look_at_segment(data: DataConfig, name: str) -> Segment:
    """Lists the files of a segment, and checks whether it is complete.

    Raises:
        InputError: The path cannot be used.
        StorageError: The storage cannot be read now.
    """
    config = data.segments
    assert config.path
    left_out = LeftOutPaths()
    listed = matching_files(KEY, config.path.replace(NAME, name), make_reader(data), left_out)
    files = tuple(listed["url"].to_pylist())
    part = _part(config.path).replace(NAME, name)
    with named(KEY, config.path):
        fs, _ = open_storage(config.path)
        paths, root = [open_storage(file)[1] for file in files], posixpath.dirname(open_storage(part)[1])
        sizes = listed["size"].to_pylist()
        sizes = fs.sizes(paths) if None in sizes else sizes  # in concurrent requests on an object store
        lacks = ""
        if len(files) < config.least_files:
            lacks = f"has {len(files)} of at least {config.least_files} files"
        elif config.marker and not fs.exists(open_storage(f"{part}/{config.marker}")[1]):
            lacks = f"has no {config.marker}"
        elif config.least_age_seconds:
            changed = max((fs.modified(path).timestamp(), path) for path in paths)
            lacks = _too_young(*changed, config.least_age_seconds)
    # Without the root, so that a relative path gives the same fingerprint in any working directory.
    names = [path.removeprefix(root) for path in paths]
    fingerprint = hashlib.sha256(repr([*zip(names, sizes, strict=True)]).encode()).hexdigest()[:16]
    return Segment(name, files, fingerprint, lacks, (*left_out.reasons(),))


def is_left_out(config: SegmentsConfig, name: str) -> bool:
    """Returns whether `skip` leaves a segment out."""
    return any(fnmatchcase(name, pattern) for pattern in config.skip)


def contents_of(files: Sequence[str]) -> str:
    """Returns a text that identifies the contents of files: the same for copies, whatever their names.

    Raises:
        StorageError: The storage cannot be read now.
    """
    with named(KEY, files[0]):
        fs = open_storage(files[0])[0]
        paths = [open_storage(file)[1] for file in files]
        sized = [(path, size) for path, size in zip(paths, fs.sizes(paths), strict=True) if size]
        kept, sizes = [path for path, _ in sized], [size for _, size in sized]
        tails = [max(0, size - END_BYTES) for size in sizes]
        begins = fs.cat_ranges(kept, [0] * len(kept), [min(size, END_BYTES) for size in sizes], on_error="raise")
        ends = fs.cat_ranges(kept, tails, sizes, on_error="raise")
    parts = zip(sizes, begins, ends, strict=True)
    digests = sorted(f"{size} {hashlib.sha256(begin + end).hexdigest()}" for size, begin, end in parts)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()[:16]


def data_of_segment(data: DataConfig, name: str, split: str) -> DataConfig:
    """Returns the data section with a segment as the data of a split."""
    assert data.segments.path
    return data.model_copy(update={split: [data.segments.path.replace(NAME, name)]})


def _too_young(changed: float, file: str, least_age: float) -> str:
    """Returns the reason if a segment is too young to be complete, in words that do not change with time; else empty.

    Args:
        changed: Time of the last change of its newest file, in seconds since 1970.
        file: The newest file.
        least_age: The age of a complete segment, in seconds.
    """
    now, at = time.time(), datetime.fromtimestamp(changed, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    if now - changed >= least_age:
        return ""
    if changed <= now:
        return f"changed at {at}, less than {least_age:,.0f} s ago"
    # A machine whose clock is ahead may still be writing it.
    return f"has '{file}' of {at}, which this machine's clock has not reached; set the clock right, or touch the file"


def _part(path: str) -> str:
    """Returns a path up to the directory or file whose name contains the segment's name."""
    before, after = path.split(NAME)
    return before + NAME + after.partition("/")[0]
