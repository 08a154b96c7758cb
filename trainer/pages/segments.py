"""The table of the segments that a run was trained on, for the pages and for the end of the run."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Table = list[list[str]]
"""The rows of a table, the first of which is its header."""


def segments_table(lines: Sequence[Mapping[str, Any]]) -> Table:
    """Returns the segments of segments.jsonl, with what the model was worth on each before it was trained on it."""
    # The metrics may be others from one job to the next.
    names = [name for name in union([line["before"] or {} for line in lines]) if name != "samples"]
    shown = [name for name in names if not is_bound(name)]
    rows = [
        [line["segment"], f"{line['samples']:,}", f"{line['step']:,}"]
        + [f"{line['before'][name]:.5f}" if name in (line["before"] or {}) else "" for name in shown]
        for line in lines
    ]
    return [["segment", "samples", "step", *shown], *rows]


def is_bound(metric: str) -> bool:
    """Returns whether a metric is the largest possible error of another."""
    return metric.partition("/")[0].endswith("_error")


def union(maps: Iterable[Mapping[str, Any]]) -> list[str]:
    """Returns the keys of several maps, each once."""
    return list(dict.fromkeys(key for one in maps for key in one))
