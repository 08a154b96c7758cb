"""The files of each split, as they are, and those of their row groups that are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.data.dataset import DataFile, FileSet, RowGroup, check_files, inspect_files
from trainer.tools.check_data.finding import Finding
from trainer.tools.check_data.kinds import Kind, kind_of

SPLITS = ("train", "validation", "test")
GROUPS = 64  # row groups that a sample is spread over, at least


@dataclass(frozen=True)
class Split:
    """The files of a split.

    Attributes:
        name: train, validation or test.
        files: The files.
        kinds: The columns that can be measured in all of them, by name.
    """

    name: str
    files: FileSet
    kinds: Mapping[str, Kind]


def open_split(name: str, key: str, patterns: Sequence[str], config: DataConfig) -> Split:
    """Lists and inspects the files of a split without regard to what a configuration needs of them.

    Raises:
        InputError: A pattern matches nothing, a file cannot be read, or there are no rows.
    """
    files = inspect_files(key, patterns, config)
    return Split(name, files, _common_kinds(files))


def _common_kinds(files: FileSet) -> dict[str, Kind]:
    kinds = {name: _common_kind(files, name) for name in files.files[0].schema.names}
    return {name: kind for name, kind in kinds.items() if kind != "other"}


def _common_kind(files: FileSet, name: str) -> Kind:
    schemas = [file.schema for file in files.files]
    kinds: set[Kind] = {kind_of(schema.field(name).type) if name in schema.names else "other" for schema in schemas}
    if len(kinds) > 1:
        kinds.discard("empty")
    # Whole numbers are written as floating point by programs that have no other way to write a null.
    if kinds == {"integer", "number"}:
        return "number"
    return kinds.pop() if len(kinds) == 1 else "other"


def schema_findings(splits: Sequence[Split], config: DataConfig | None) -> list[Finding]:
    """Returns what is wrong with columns and types: missing ones, and files that differ."""
    first = splits[0].files.files[0]
    found = []
    for split in splits:
        for file in split.files.files:
            for name in config.columns if config else first.schema.names:
                if difference := _difference(name, first, file):
                    remedy = "write all files with the same columns"
                    found.append(
                        Finding("error" if config else "warning", "schema", file.name, name, difference, remedy)
                    )
    return found or (_refused(splits, config) if config else [])


def _difference(name: str, first: DataFile, file: DataFile) -> str:
    if name not in file.schema.names:
        return f"there is no such column; the file has: {', '.join(file.schema.names)}"
    if name not in first.schema.names:
        return ""
    there, here = first.schema.field(name).type, file.schema.field(name).type
    kinds = {kind_of(there), kind_of(here)} - {"empty"}
    return f"it is of type {here}, but {there} in {first.name}" if len(kinds) > 1 else ""


def _refused(splits: Sequence[Split], config: DataConfig) -> list[Finding]:
    """Returns the first thing for which training would refuse the files of each split."""
    found = []
    for split in splits:
        try:
            check_files(split.files, config)
        except InputError as error:
            remedy = "write the column in another type, or change the configuration"
            found.append(Finding("error", "type", split.name, "", without_secrets(error), remedy))
    return found


def chosen_groups(split: Split, rows: int, everything: bool, seed: int) -> list[RowGroup]:
    """Returns the row groups to read: all, or some that are spread evenly over the files.

    Args:
        split: The files.
        rows: Rows to sample from them.
        everything: Whether to read all.
        seed: Decides where the first one lies.
    """
    groups = split.files.row_groups
    wanted = max(GROUPS, int(np.ceil(rows * len(groups) / split.files.rows)))
    if everything or wanted >= len(groups):
        return groups
    first = np.random.default_rng(seed).random()
    places = np.unique(((np.arange(wanted) + first) * len(groups) / wanted).astype(int))
    return [groups[place] for place in places]
