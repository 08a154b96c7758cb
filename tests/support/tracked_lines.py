"""What a tracker should have of a run, by the run's own files."""

import json
from pathlib import Path
from typing import Any


def rows_of(out: Path) -> list[dict[str, Any]]:
    """Returns a row for each line of metrics.jsonl and of evaluations.jsonl on `validation`, with names of trackers."""
    found = []
    for group, name in (("train", "metrics.jsonl"), ("validation", "evaluations.jsonl")):
        for text in (out / name).read_text().splitlines():
            line = json.loads(text)
            numbers = {key: value for key, value in line.items() if key not in ("step", "time", "split")}
            values = {key if key.startswith("rate/") else f"{group}/{key}": value for key, value in numbers.items()}
            found.append(values | {"step": line["step"]})
    return in_order(found)


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns rows sorted by their text, as trackers keep them in an order of their own."""
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
