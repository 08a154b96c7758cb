"""The files of each split, as they are, and those of their row groups that are read."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from apps.check_data.finding import Finding
from apps.check_data.kinds import Kind, kind_of
from trainer.config.data import DataConfig
from trainer.config.select import SelectConfig
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.data.columns import id_columns
from trainer.data.dataset import DataFile, FileSet, RowGroup, check_files, inspect_files
from trainer.data.plain_types import is_list, meaning
from trainer.data.selected_files import find_evaluated_files, find_training_files

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


def open_split(name: str, key: str, patterns: Sequence[str], config: DataConfig, seed: int) -> Split:
    """Lists and inspects the files of a split without regard to what a configuration needs of their columns.

    Args:
        name: train, validation or test.
        key: The key or flag that gave the patterns, for messages.
        patterns: Files, globs or directories.
        config: Names the reader, and the samples that training sees.
        seed: Decides which these are.

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


def numbers_alike(splits: Sequence[Split], but: Collection[str]) -> list[Split]:
    """Returns splits in which a column is of numbers everywhere if it is of integers in some and of numbers in others.

    So what is compared between splits is compared. Not the columns of ids, whose other splits are refused.
    """
    kinds = {name: {split.kinds.get(name) for split in splits} for name in splits[0].kinds if name not in but}
    numbers: dict[str, Kind] = {name: "number" for name, found in kinds.items() if found == {"integer", "number"}}
    return [replace(split, kinds={**split.kinds, **numbers}) for split in splits]


def _once(files: FileSet) -> FileSet:
    """Returns files without what data.select.mixture repeats: these copies are meant."""
    chosen = files.chosen and tuple(group for group in files.chosen if not (group.choice and group.choice.copy))
    return replace(files, chosen=chosen)


def _common_kinds(files: FileSet) -> dict[str, Kind]:
    kinds = {name: _common_kind(files, name) for name in files.files[0].schema.names if name}
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
    """Returns what is wrong with columns and types: missing ones, and files that differ, in any split."""
    ids = id_columns(config) if config else []
    names = config.columns if config else [name for name in splits[0].files.files[0].schema.names if name]
    severity, remedy = "error" if config else "warning", "write all files with the same columns"
    found = [
        Finding(severity, "schema", file, name, difference, remedy)
        for name in names
        for file, difference in _differences(name, splits, of_ids=name in ids)
    ]
    return found or (_refused(splits, config) if config else [])


def index_findings(splits: Sequence[Split]) -> list[Finding]:
    """Returns that a column has no name: of CSV files, mostly the index of the rows, which no feature is made of."""
    unnamed = [file for split in splits for file in split.files.files if "" in file.schema.names]
    if not unnamed:
        return []
    first, number = unnamed[0], unnamed[0].schema.names.index("")
    if number:
        found, remedy = (
            f"column {number + 1} has no name, and is left out",
            "name it in the header, or leave it out of the file",
        )
    else:
        found = "the first column has no name: it is the index of the rows, as pandas and R write it, and is left out"
        remedy = "write files without it: to_csv(..., index=False), write.csv(..., row.names = FALSE)"
    return [Finding("note", "row index", first.name, "", found, remedy)]


def _differences(name: str, splits: Sequence[Split], of_ids: bool) -> Iterator[tuple[str, str]]:
    """Yields the files that lack a column or have others values in it than the first file with any, and how."""
    first: tuple[str, DataFile] | None = None
    for file in (file for split in splits for file in split.files.files):
        if name not in file.schema.names:
            yield file.name, f"there is no such column; the file has: {', '.join(file.schema.names)}"
            continue
        here = _meaning(file.schema.field(name).type, of_ids)
        if first and here and here != first[0]:
            there = first[1].schema.field(name).type
            yield file.name, f"it is of type {file.schema.field(name).type}, but {there} in {first[1].name}"
        first = first or ((here, file) if here else None)


def _meaning(dtype: pa.DataType, of_ids: bool) -> str | None:
    """Returns what values count, to training and in lists or not; None if there are none."""
    found = meaning(dtype, of_ids)
    return f"lists of {found}" if found and is_list(dtype) else found


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
