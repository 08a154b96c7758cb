"""The splits of files that no configuration names: by the names of files and of their directories."""

import os
import re
from collections.abc import Mapping, Sequence

from apps.check_data.splits import SPLITS
from trainer.config.data import DataConfig
from trainer.data.dataset import list_files
from trainer.data.readers.registry import make_reader

NAMES = {
    "validation": re.compile(r"(^|[^a-z])(validation|valid|val|dev)([^a-z]|$)"),
    "test": re.compile(r"(^|[^a-z])test([^a-z]|$)"),
}


def split_sources(source: Sequence[str], config: DataConfig) -> dict[str, list[str]]:
    """Returns the files or directories of each split; those that name none are to train on.

    Args:
        source: Files, globs or directories.
        config: Names the reader.

    Raises:
        InputError: A pattern matches nothing.
    """
    reader = make_reader(config)
    found: dict[str, list[str]] = {}
    for pattern in source:
        urls = sorted({_as_given(url, pattern) for url in list_files("--source", pattern, reader)})
        splits = {url: _split_of(url.removeprefix(_as_given(pattern, pattern))) for url in urls}
        if {*splits.values()} == {"train"}:  # nothing below the pattern divides its files, but its own name may
            splits = dict.fromkeys(urls, _split_of(pattern.rstrip("/").rpartition("/")[2]))
        for split in dict.fromkeys(splits.values()):
            found.setdefault(split, []).extend(_shortened(split, splits, pattern))
    if "train" not in found:
        # All names have the same word, as in latest-test-data/: it divides nothing.
        return {"train": [*source]}
    return {name: found[name] for name in SPLITS if name in found}


def _as_given(url: str, pattern: str) -> str:
    """Returns a file that a pattern names as the pattern does: from the working directory on, if it begins there.

    The jobs of a configuration may run elsewhere, and resolve its paths from where they run.
    """
    return url if "://" in pattern or pattern.startswith(("/", "~")) else os.path.relpath(url)


def _shortened(split: str, splits: Mapping[str, str], pattern: str) -> list[str]:
    """Returns the pattern or directories in place of files that are all of one split: new files are found there."""
    if len({*splits.values()}) == 1:
        return [pattern]
    named = []
    for url in (url for url in splits if splits[url] == split):
        folder = url.rpartition("/")[0]
        whole = all(of == split for other, of in splits.items() if other.startswith(f"{folder}/"))
        named.append(folder if whole else url)
    return [*dict.fromkeys(named)]


def _split_of(path: str) -> str:
    """Returns the split that a part of a path names."""
    return next((name for name, word in NAMES.items() if word.search(path.lower())), "train")
