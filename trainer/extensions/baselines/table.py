"""The metrics of baselines, and of a model beside them, as a table for a terminal."""

from collections.abc import Iterable, Mapping, Sequence

from tabulate import tabulate

from trainer.metrics.registry import METRICS, built_in_direction

Metrics = Mapping[str, float]
Row = tuple[str, Mapping[str, Metrics]]
"""A name, and the metrics of each split."""
SAME_ORDER = "normalized_entropy"  # as log_loss on the same rows


def shown(names: Iterable[str]) -> list[str]:
    """Returns the metrics that a table shows: those that can be better or worse, and the calibration."""
    names = list(names)
    kept = [name for name in names if name == "calibration" or built_in_direction(name) is not None or _is_own(name)]
    return [name for name in kept if name != SAME_ORDER or "log_loss" not in names]


def _is_own(name: str) -> bool:
    stems = {known.partition("@")[0] for known in METRICS}
    return name.partition("@")[0] not in stems and not name.endswith("_error")


def draw(
    title: str, rows: Sequence[Row], splits: Sequence[str], metrics: Sequence[str], beside: Sequence[str] = ()
) -> str:
    """Returns a table: a row for each name, a column for each metric on each split.

    Args:
        title: What stands above the names.
        rows: Names and metrics.
        splits: The splits.
        metrics: The metrics.
        beside: A cell at the end of each row, with its header first. Unset: none.
    """
    header = [title, *(f"{split}\n{metric}" for split in splits for metric in metrics), *beside[:1]]
    cells = [
        [name, *(_cell(found.get(split, {}).get(metric)) for split in splits for metric in metrics)]
        for name, found in rows
    ]
    for row, last in zip(cells, beside[1:], strict=False):
        row.append(last)
    return tabulate(cells, header, disable_numparse=True, colalign=["left", *["right"] * (len(header) - 1)])


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"
