"""All checks of a data set; here those of files and splits: schemas, row groups, leaks, shifts, duplicates, rates."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from apps.check_data.checked import Check, Checked
from apps.check_data.column_checks import check_tables, check_values
from apps.check_data.finding import Finding, percent
from apps.check_data.history_checks import check_late_actions, check_own_ids
from apps.check_data.profile import Profile
from apps.check_data.reading import Measured
from apps.check_data.row_checks import check_near_copies, check_twins, check_users, check_wrapped_ids
from apps.check_data.splits import Split
from apps.check_data.text_checks import (
    check_broken_text,
    check_look_alikes,
    check_nulls_as_text,
    check_numbers_as_text,
)
from apps.check_data.time_checks import check_change, check_days, check_epoch, check_time_zones, check_young_labels
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.core.registry import find_by_name
from trainer.core.secrets import without_secrets
from trainer.data.columns import id_columns
from trainer.data.dataset import check_files
from trainer.data.files import DataFile
from trainer.rules.plain_types import is_list, meaning

UNEVEN = 20  # times the median
SMALL_GROUP = 1000
MANY_GROUPS = 100
LEAK = 0.99
DECIDES = 0.05  # the part of rows that one value must have to count
EXPECTED = 30  # labels of the other class that chance would have given these rows
SHIFTED, MOVED = 1.0, 0.25  # population stability indices; from 0.25 on it is usually called a shift
COPIES = 0.01
DIFFERENT = 2.0  # times the label rate
DEVIATIONS = 5.0
PERIODS = 10


def of_splits(checked: Checked) -> Iterator[Finding]:
    """Yields findings on the files of each split, and on the label rates of its files."""
    config = checked.config
    for measured in checked.splits:
        yield from check_layout(config, measured.split)
        for label in config.labels:
            if label in measured.tallies and label not in config.numeric_labels:
                yield from check_label_rates(label, measured)


def of_columns(checked: Checked) -> Iterator[Finding]:
    """Yields findings on the values of each column that is used, its table, and what it says about the label."""
    for name in checked.config.columns:
        for check in (check_values, check_tables, check_leak, check_shift) if name in checked.profiles else ():
            yield from check(checked.config, checked.profiles[name])


def of_rows(checked: Checked) -> Iterator[Finding]:
    """Yields findings on copies of rows, and on the label rate along a column of times."""
    yield from check_duplicates(checked.splits)
    for label in checked.config.labels:
        if checked.time and label in checked.profiles:
            yield from check_time(label, checked.time, checked.profiles)


def schema_findings(splits: Sequence[Split], config: DataConfig | None) -> list[Finding]:
    """Returns the columns that files of any split lack or have in different types."""
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
    """Returns a note on a column without a name: in CSV files mostly the index of the rows, which is left out."""
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
    """Yields each file that lacks a column or has another type than the first file with values, and what differs."""
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
    """Returns the meaning of values to training, in lists or not; None if a file has no values."""
    found = meaning(dtype, of_ids)
    return f"lists of {found}" if found and is_list(dtype) else found


def _refused(splits: Sequence[Split], config: DataConfig) -> list[Finding]:
    """Returns the first reason for which training would refuse the files of each split."""
    found = []
    for split in splits:
        try:
            check_files(split.files, config)
        except InputError as error:
            remedy = "write the column in another type, or change the configuration"
            found.append(Finding("error", "type", split.name, "", without_secrets(error), remedy))
    return found


def check_layout(config: DataConfig, split: Split) -> Iterator[Finding]:
    """Yields findings on the sizes of files and row groups, for the order in which training reads them."""
    files = split.files.files
    rows = np.array([sum(file.row_groups) for file in files])
    if empty := [file.name for file, count in zip(files, rows, strict=True) if not count]:
        found = f"no rows, like {len(empty) - 1} of the other files" if len(empty) > 1 else "no rows"
        yield Finding("warning", "empty file", empty[0], "", found, "look at how it is written")
    if len(files) > 2 and rows.max() > UNEVEN * max(1.0, float(np.median(rows))):
        found = f"{rows.max():,} rows, {rows.max() / max(1.0, float(np.median(rows))):.0f} times the median file"
        remedy = "training divides rows, not files, and does not mind; a job of yours may have failed"
        yield Finding("warning", "uneven files", files[int(rows.argmax())].name, "", found, remedy)
    if split.name == "train" and config.shuffle:
        yield from _check_row_groups(config, split)


def _check_row_groups(config: DataConfig, split: Split) -> Iterator[Finding]:
    groups, window = split.files.row_groups, config.shuffle_window_rows
    largest = max(groups, key=lambda group: group.rows)
    if largest.rows > window:
        found = f"a row group has {largest.rows:,} rows, more than data.shuffle_window_rows = {window:,}"
        remedy = "write row groups of 10,000 to 100,000 rows: memory is that of whole row groups"
        yield Finding("warning", "row groups too large", split.files.files[largest.file].name, "", found, remedy)
    mean = split.files.rows / len(groups)
    if len(groups) > MANY_GROUPS and mean < SMALL_GROUP:
        found = f"{len(groups):,} row groups of {mean:.0f} rows on average: each costs a read of its own"
        yield Finding(
            "warning", "row groups too small", split.name, "", found, "write row groups of 10,000 rows or more"
        )


def check_leak(config: DataConfig, profile: Profile) -> Iterator[Finding]:
    """Yields a finding if a feature alone predicts the label."""
    name, where = profile.name, profile.first.name
    remedy = "leave it out unless it is known before the label is"
    if name in config.dense or name in config.sparse:
        auc = profile.auc_as_number if name in config.dense else profile.auc_as_ids
        if auc > LEAK:
            yield Finding("error", "leakage", where, name, f"an AUC of {auc:.4f} by itself", remedy)
        elif found := deciding_value(profile):
            yield Finding("warning", "leakage", where, name, found, remedy)


def deciding_value(profile: Profile) -> str:
    """Returns a sentence if all rows with one frequent value have the same label; else empty."""
    if profile.kind not in ("integer", "text") and not (profile.kind == "number" and profile.has_few_values):
        return ""
    ids = profile.first_ids
    for label, positive in profile.labels.items():
        mean = float(positive.mean())
        counts = ids.counts_in(positive, 2)[:, 1]
        for value, place, count in ids.top(int(1 / DECIDES)):
            other = count * (1 - mean if counts[place] == count else mean)
            if count >= DECIDES * ids.rows and counts[place] in (0, count) and other >= EXPECTED:
                always = 1 if counts[place] else 0
                return (
                    f"all {count:,} rows with the value {value!r} have {label} {always}; {percent(mean)} of all are 1"
                )
    return ""


def check_shift(config: DataConfig, profile: Profile) -> Iterator[Finding]:
    """Yields a finding if the values of a dense feature are distributed differently in another split."""
    if profile.name not in config.dense:
        return
    for measured in profile.measured[1:]:
        index = profile.shift(measured)
        if index > MOVED and min(measured.sample.num_rows, profile.first.sample.num_rows) >= 100:
            found = f"a population stability index of {index:.2f} from {profile.first.name}"
            severity = "warning" if index > SHIFTED else "note"
            remedy = "compare how both splits are made; the page shows both distributions"
            yield Finding(severity, "shift", measured.name, profile.name, found, remedy)


def check_duplicates(splits: Sequence[Measured]) -> Iterator[Finding]:
    """Yields a finding if rows occur twice, within a split or in two splits."""
    seen: list[tuple[str, np.ndarray]] = []
    for measured in splits:
        distinct, counts = np.unique(measured.hashes, return_counts=True)
        copies = int((counts - 1).sum())
        if copies > COPIES * len(measured.hashes):
            found = f"{percent(copies, len(measured.hashes))} of the rows are copies of others"
            yield Finding("warning", "duplicate rows", measured.name, "", found, "look at how the files are written")
        for name, earlier in seen:
            again = int(counts[np.isin(distinct, earlier)].sum())
            if again > COPIES * len(measured.hashes):
                found = f"{percent(again, len(measured.hashes))} of the rows are rows of {name}, too"
                remedy = "divide the rows before training: metrics on seen rows mean nothing"
                yield Finding("error", "rows in two splits", measured.name, "", found, remedy)
        seen.append((measured.name, distinct))


def check_label_rates(name: str, measured: Measured) -> Iterator[Finding]:
    """Yields a finding if the mean label of a file deviates from the other files."""
    tallies = [(file.name, one) for file, one in zip(measured.split.files.files, measured.tallies[name], strict=True)]
    whole = measured.tally(name)
    if len(tallies) < 2 or not (0 < whole.rate < 1):
        return
    worst, sizes = None, {file: one.rate for file, one in tallies if one.values}
    for file, one in tallies:
        if _differs(one.rate, one.values, (whole.total - one.total) / max(1, whole.values - one.values)):
            worst = worst or file
    if worst:
        found = f"its mean is {sizes[worst]:.3g} there, and {whole.rate:.3g} in all {len(tallies)} files"
        remedy = "look at how that file is made; batches of a mixed order hide it, but labels may be wrong"
        yield Finding("warning", "label rate of files", worst, name, found, remedy)


def _differs(rate: float, rows: int, others: float) -> bool:
    if not rows or not 0 < others < 1:
        return False
    deviations = abs(rate - others) / np.sqrt(others * (1 - others) / rows)
    ratio = max(rate, others) / max(min(rate, others), 1e-12)
    return deviations > DEVIATIONS and ratio > DIFFERENT


def rates_over_time(label: np.ndarray, times: np.ndarray) -> Mapping[str, np.ndarray]:
    """Divides rows into periods of equally many rows; returns the start, the mean label and the rows of each."""
    order = np.argsort(times, kind="stable")
    parts = [part for part in np.array_split(order, PERIODS) if len(part)]
    return {
        "start": np.array([times[part[0]] for part in parts]),
        "rate": np.array([label[part].mean() for part in parts]),
        "rows": np.array([len(part) for part in parts]),
    }


def check_time(label: str, time: str, profiles: Mapping[str, Profile]) -> Iterator[Finding]:
    """Yields a finding if the label rate of a period deviates from the other periods."""
    first = profiles[time].first
    values = profiles[label].numbers(first)
    found = rates_over_time(np.nan_to_num(values), profiles[time].numbers(first))
    for number, (rate, rows) in enumerate(zip(found["rate"], found["rows"], strict=True)):
        others = (found["rate"] @ found["rows"] - rate * rows) / max(1, found["rows"].sum() - rows)
        if _differs(rate, rows, others):
            words = (
                f"its mean is {rate:.3g} in period {number + 1} of {len(found['rate'])} of {time}, else {others:.3g}"
            )
            remedy = "look at what changed then: a new logger, or labels that had no time to come"
            yield Finding("warning", "label rate over time", first.name, label, words, remedy)
            return


CHECKS: tuple[Check, ...] = (
    of_splits,
    of_columns,
    of_rows,
    check_look_alikes,
    check_broken_text,
    check_nulls_as_text,
    check_numbers_as_text,
    check_wrapped_ids,
    check_twins,
    check_near_copies,
    check_users,
    check_change,
    check_time_zones,
    check_days,
    check_epoch,
    check_young_labels,
    check_late_actions,
    check_own_ids,
)
"""All checks of what was read; `--checks` adds one's own."""


def own_checks(names: Sequence[str]) -> list[Check]:
    """Returns checks by their names, `package.module:check`.

    Raises:
        InputError: A name is of another form, or cannot be imported.
    """
    return [find_by_name("--checks", name, {}) for name in names]
