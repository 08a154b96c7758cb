"""The splits of a data set: their files, the kinds of their columns, and the row groups that are read."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from trainer.config.data import DataConfig, SelectConfig
from trainer.data.dataset import FileSet, RowGroup, inspect_files
from trainer.data.listing import list_files
from trainer.data.readers.formats import make_reader
from trainer.data.row_groups import find_evaluated_files, find_training_files
from trainer.rules.plain_types import is_list, is_moment, is_string, plain_type

SPLITS = ("train", "validation", "test")
GROUPS = 64  # minimum number of row groups that a sample is spread over
NAMES = {
    "validation": re.compile(r"(^|[^a-z])(validation|valid|val|dev)([^a-z]|$)"),
    "test": re.compile(r"(^|[^a-z])test([^a-z]|$)"),
}
Kind = Literal["integer", "number", "text", "integers", "texts", "time", "empty", "other"]
COMPUTED: dict[Kind, pa.DataType] = {
    "integer": pa.int64(),
    "number": pa.float64(),
    "text": pa.large_binary(),  # strings may be other than UTF-8, and training reads bytes as strings
    "integers": pa.large_list(pa.int64()),
    "texts": pa.large_list(pa.large_binary()),
    "time": pa.int64(),
    "empty": pa.float64(),
}


@dataclass(frozen=True)
class Split:
    """The files of a split.

    Attributes:
        name: train, validation or test.
        files: The files.
        kinds: The kind of each column that can be measured in all files, by name.
    """

    name: str
    files: FileSet
    kinds: Mapping[str, Kind]


def split_sources(source: Sequence[str], config: DataConfig) -> dict[str, list[str]]:
    """Returns the files or directories of each split; files whose path names no split are for training.

    Args:
        source: Files, globs or directories.
        config: Names the reader.

    Raises:
        InputError: A pattern matches nothing.
    """
    reader = make_reader(config)
    found: dict[str, list[str]] = {}
    for pattern in source:
        urls = sorted({_as_given(url, pattern) for url in list_files("--source", pattern, reader)["url"].to_pylist()})
        splits = {url: _split_of(url.removeprefix(_as_given(pattern, pattern))) for url in urls}
        if {*splits.values()} == {"train"}:  # paths below the pattern name no split, but the pattern itself may
            splits = dict.fromkeys(urls, _split_of(pattern.rstrip("/").rpartition("/")[2]))
        for split in dict.fromkeys(splits.values()):
            found.setdefault(split, []).extend(_shortened(split, splits, pattern))
    if "train" not in found:
        # A word that all names have, as in latest-test-data/, does not divide the files.
        return {"train": [*source]}
    return {name: found[name] for name in SPLITS if name in found}


def open_split(name: str, key: str, patterns: Sequence[str], config: DataConfig, seed: int) -> Split:
    """Lists and inspects the files of a split, without checking their columns.

    Args:
        name: train, validation or test.
        key: The key or flag that gave the patterns, for messages.
        patterns: Files, globs or directories.
        config: Names the reader and data.select, which selects the samples of training.
        seed: Seed of this selection.

    Raises:
        InputError: A pattern matches nothing, a file cannot be read, there are no rows, or data.select cannot be used.
    """
    if config.select == SelectConfig():
        files = inspect_files(key, patterns, config)
    elif name == "train":
        files = _once(find_training_files(config, seed, inspect_files))
    else:
        files = find_evaluated_files(key, patterns, config, inspect_files)
    return Split(name, files, _common_kinds(files))


def not_measured(split: Split) -> dict[str, str]:
    """Returns the columns of the first file that cannot be measured in all files, each with the reason.

    Columns with a repeated name are left to `refuse_repeated`.
    """
    schema = split.files.files[0].schema
    types = {field.name: field.type for field in schema if field.name and field.name not in split.kinds}
    types = {name: dtype for name, dtype in types.items() if schema.get_field_index(name) >= 0}
    several = "not in all files, or of another kind in some"
    return {
        name: f"of type {dtype}, which is not looked at" if kind_of(dtype) == "other" else several
        for name, dtype in types.items()
    }


def numbers_alike(splits: Sequence[Split], but: Collection[str]) -> list[Split]:
    """Makes columns that are integers in some splits and numbers in others numbers in all splits.

    This makes splits comparable. Columns of ids in `but` stay as they are: training refuses ids of different types.
    """
    kinds = {name: {split.kinds.get(name) for split in splits} for name in splits[0].kinds if name not in but}
    numbers: dict[str, Kind] = {name: "number" for name, found in kinds.items() if found == {"integer", "number"}}
    return [replace(split, kinds={**split.kinds, **numbers}) for split in splits]


def chosen_groups(split: Split, rows: int, everything: bool, seed: int, spread: int = GROUPS) -> list[RowGroup]:
    """Returns the row groups to read: all, or some, spread evenly over the files.

    Args:
        split: The files.
        rows: Rows to sample from them.
        everything: Whether to read all.
        seed: Decides the position of the first row group.
        spread: Minimum number of row groups that a sample is spread over.
    """
    groups = split.files.row_groups
    wanted = max(spread, int(np.ceil(rows * len(groups) / split.files.rows)))
    if everything or wanted >= len(groups):
        return groups
    first = np.random.default_rng(seed).random()
    places = np.unique(((np.arange(wanted) + first) * len(groups) / wanted).astype(int))
    return [groups[place] for place in places]


def kind_of(dtype: pa.DataType) -> Kind:
    """Returns the kind of a column by its type; `other`, such as structs, cannot be measured."""
    dtype = plain_type(dtype)
    if is_list(dtype):
        inner = kind_of(dtype.value_type)
        return "integers" if inner == "integer" else "texts" if inner == "text" else "other"
    if pa.types.is_integer(dtype) or pa.types.is_boolean(dtype):
        return "integer"
    if pa.types.is_floating(dtype) or pa.types.is_decimal(dtype):
        return "number"
    if is_string(dtype):
        return "text"
    if is_moment(dtype):
        return "time"
    return "empty" if pa.types.is_null(dtype) else "other"


def computed(array: pa.Array, kind: Kind) -> pa.Array:
    """Returns plain values in the type of their kind in `COMPUTED`; integers above 63 bits wrap."""
    if array.type == COMPUTED[kind]:
        return array
    if pa.types.is_date32(array.type):
        array = array.cast(pa.date64())
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(COMPUTED[kind], safe=False)


def _once(files: FileSet) -> FileSet:
    """Returns files without the copies that data.select.mixture makes on purpose."""
    chosen = files.chosen and tuple(group for group in files.chosen if not (group.choice and group.choice.copy))
    return replace(files, chosen=chosen)


def _common_kinds(files: FileSet) -> dict[str, Kind]:
    kinds = {name: _common_kind(files, name) for name in files.files[0].schema.names if name}
    return {name: kind for name, kind in kinds.items() if kind != "other"}


def _common_kind(files: FileSet, name: str) -> Kind:
    """Returns the kind of a column; `other` if a file lacks it, or has two columns of that name."""
    schemas = files.files.first_of_schemas()
    kinds: set[Kind] = {
        "other" if schema.get_field_index(name) < 0 else kind_of(schema.field(name).type) for schema in schemas
    }
    if len(kinds) > 1:
        kinds.discard("empty")
    # Programs that cannot write null integers write whole numbers as floating point.
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else "other"


def _as_given(url: str, pattern: str) -> str:
    """Returns a file in the style of its pattern: relative to the working directory if the pattern is.

    Jobs may run elsewhere, and resolve relative paths of the configuration there.
    """
    return url if "://" in pattern or pattern.startswith(("/", "~")) else os.path.relpath(url)


def _shortened(split: str, splits: Mapping[str, str], pattern: str) -> list[str]:
    """Returns the pattern or directories in place of the files of a split, so that later files are found, too."""
    if len({*splits.values()}) == 1:
        return [pattern]
    named = []
    for url in (url for url in splits if splits[url] == split):
        folder = url.rpartition("/")[0]
        whole = all(of == split for other, of in splits.items() if other.startswith(f"{folder}/"))
        named.append(folder if whole else url)
    return [*dict.fromkeys(named)]


def _split_of(path: str) -> str:
    """Returns the split that a path names, or `train`."""
    return next((name for name, word in NAMES.items() if word.search(path.lower())), "train")
