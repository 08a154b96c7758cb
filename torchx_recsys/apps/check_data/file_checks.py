"""Checks of files: their columns, sizes and row groups."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from torchx_recsys.apps.check_data.checked import Checked
from torchx_recsys.apps.check_data.finding import Finding
from torchx_recsys.apps.check_data.splits import Split
from trainer.config.data import DataConfig
from trainer.core.errors import InputError, some_of
from trainer.core.secrets import without_secrets
from trainer.data.columns import id_columns
from trainer.data.dataset import check_files
from trainer.data.files import DataFile
from trainer.rules.plain_types import meaning_in_lists


def schema_findings(splits: Sequence[Split], config: DataConfig | None) -> list[Finding]:
    """Returns the columns that files of any split lack or have in different types."""
    ids = id_columns(config) if config else []
    names = config.columns if config else list(dict.fromkeys(filter(None, splits[0].files.files[0].schema.names)))
    severity = "error" if config else "warning"
    found = [
        Finding(severity, "schema", file, name, difference, remedy)
        for name in names
        for file, difference, remedy in _differences(name, splits, of_ids=name in ids)
    ]
    return found or (_refused(splits, config) if config else [])


def index_findings(splits: Sequence[Split]) -> list[Finding]:
    """Returns a note on a column without a name: in CSV files usually the row index; it is left out."""
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


def refuse_repeated(splits: Sequence[Split], flags: Mapping[str, str | None]) -> None:
    """Refuses a flag that names an ambiguous column, which a file has more than once.

    Raises:
        InputError: The message names the flag and the file.
    """
    repeated = repeated_columns(splits)
    for flag, name in flags.items():
        if name in repeated:
            raise InputError(f"{flag} is '{name}', and {repeated[name]} has more than one such column; name each apart")


def repeated_columns(splits: Sequence[Split]) -> dict[str, str]:
    """Returns column names that occur more than once in a file, each with the first such file."""
    found: dict[str, str] = {}
    for file in (file for split in splits for file in split.files.files.first_of_schemas().values()):
        for name, times in Counter(file.schema.names).items():
            if times > 1:
                found.setdefault(name, file.name)
    return found


def _differences(name: str, splits: Sequence[Split], of_ids: bool) -> Iterator[tuple[str, str, str]]:
    """Yields each file that lacks a column, has it twice, or deviates from the type in the first file with values.

    Each with the difference and the remedy.
    """
    remedy = "write all files with the same columns"
    first: tuple[str, DataFile] | None = None
    for file in (file for split in splits for file in split.files.files):
        if name not in file.schema.names:
            yield file.name, f"there is no such column; the file has: {some_of(file.schema.names)}", remedy
            continue
        if file.schema.get_field_index(name) < 0:
            yield file.name, "there is more than one column of that name, so that none can be used", "name each apart"
            continue
        here = meaning_in_lists(file.schema.field(name).type, of_ids)
        if first and here and here != first[0]:
            there = first[1].schema.field(name).type
            yield file.name, f"it is of type {file.schema.field(name).type}, but {there} in {first[1].name}", remedy
        first = first or ((here, file) if here else None)


def _refused(splits: Sequence[Split], config: DataConfig) -> list[Finding]:
    """Returns the first reason for training to refuse the files of each split."""
    found = []
    for split in splits:
        try:
            check_files(split.files, config)
        except InputError as error:
            remedy = "write the column in another type, or change the configuration"
            found.append(Finding("error", "type", split.name, "", without_secrets(error), remedy))
    return found


def check_empty_files(checked: Checked) -> Iterator[Finding]:
    """Finds files without rows: the job that wrote them may have failed."""
    for measured in checked.splits:
        files = measured.split.files.files
        if empty := [file.name for file in files if not sum(file.row_groups)]:
            found = f"no rows, like {len(empty) - 1} of the other files" if len(empty) > 1 else "no rows"
            yield Finding("warning", "empty file", empty[0], "", found, "look at how it is written")


UNEVEN = 20  # rows of an uneven file, as a multiple of the median


def check_uneven_files(checked: Checked) -> Iterator[Finding]:
    """Finds a file with far more rows than the others, which may be truncated."""
    for measured in checked.splits:
        files = measured.split.files.files
        rows = np.array([sum(file.row_groups) for file in files])
        median = max(1.0, float(np.median(rows)))
        if len(files) > 2 and rows.max() > UNEVEN * median:
            found = f"{rows.max():,} rows, {rows.max() / median:.0f} times the median file"
            remedy = "training divides rows, not files, and does not mind; a job of yours may have failed"
            yield Finding("warning", "uneven files", files[int(rows.argmax())].name, "", found, remedy)


def check_large_row_groups(checked: Checked) -> Iterator[Finding]:
    """Finds a row group larger than the shuffle window: whole row groups are held in memory."""
    files, window = checked.first.split.files, checked.config.shuffle_window_rows
    largest = max(files.row_groups, key=lambda group: group.rows)
    if checked.config.shuffle and largest.rows > window:
        found = f"a row group has {largest.rows:,} rows, more than data.shuffle_window_rows = {window:,}"
        remedy = "write row groups of 10,000 to 100,000 rows: memory is that of whole row groups"
        yield Finding("warning", "row groups too large", files.files[largest.file].name, "", found, remedy)


SMALL_GROUP = 1000
MANY_GROUPS = 100


def check_small_row_groups(checked: Checked) -> Iterator[Finding]:
    """Finds many small row groups, which training reads one by one."""
    files = checked.first.split.files
    number, mean = len(files.row_groups), files.rows / len(files.row_groups)
    if checked.config.shuffle and number > MANY_GROUPS and mean < SMALL_GROUP:
        found = f"{number:,} row groups of {mean:.0f} rows on average: each costs a read of its own"
        remedy = "write row groups of 10,000 rows or more"
        yield Finding("warning", "row groups too small", checked.first.name, "", found, remedy)
