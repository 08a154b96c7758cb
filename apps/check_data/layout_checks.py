"""Findings about files and row groups, for the order in which training reads them."""

from collections.abc import Iterator

import numpy as np

from apps.check_data.finding import Finding
from apps.check_data.splits import Split
from trainer.config.data import DataConfig

UNEVEN = 20  # times the median
SMALL_GROUP = 1000
MANY_GROUPS = 100


def check_layout(config: DataConfig, split: Split) -> Iterator[Finding]:
    """Yields what is wrong with the sizes of files and row groups."""
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
