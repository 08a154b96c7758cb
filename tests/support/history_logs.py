"""A small log of events with samples, and their histories by a plain loop."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

BEGIN = 1_700_000_000
LISTS = {"items": "item", "kinds": "kind", "scores": "score", "times": "at"}
EVENTS = pa.schema(
    [("user", pa.int64()), ("at", pa.int64()), ("item", pa.int32()), ("kind", pa.string()), ("score", pa.float32())]
)


def random_events(events: int, users: int = 7, moments: int = 60, seed: int = 0) -> list[dict]:
    """Returns events in no order, many at the same time."""
    random = np.random.default_rng(seed)
    return [
        {
            "user": int(random.integers(0, users)),
            "at": BEGIN + 5 * int(random.integers(0, moments)),
            "item": int(random.integers(1, 50)),
            "kind": str(random.choice(["play", "skip", "like"], p=[0.6, 0.35, 0.05])),
            "score": float(np.float32(random.random())),
        }
        for _ in range(events)
    ]


def write_events(events: list[dict], *files: Path) -> list[str]:
    """Writes events to files, in equal parts."""
    parts = np.array_split(np.arange(len(events)), len(files))
    for file, part in zip(files, parts, strict=True):
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([events[place] for place in part], EVENTS), file)
    return [str(file) for file in files]


def random_samples(rows: int, users: int = 7, moments: int = 60, seed: int = 1) -> pa.Table:
    """Returns samples of these users, of one that the log lacks, and of none."""
    random = np.random.default_rng(seed)
    who = random.integers(0, users + 1, rows)
    return pa.table(
        {
            "who": pa.array([None if row % 11 == 3 else int(one) for row, one in enumerate(who)], pa.int64()),
            "now": BEGIN + 5 * random.integers(0, moments, rows),
            "label": random.integers(0, 2, rows).astype(np.float32),
            "row_id": np.arange(rows),
        }
    )


def history_of(events: list[dict], who, now, length, where=lambda event: True, each=None, among=None) -> list[dict]:
    """Returns the history of a sample, by a loop over all events."""
    own = [(event["at"], place) for place, event in enumerate(events) if event["user"] == who is not None]
    own = [events[place] for at, place in sorted(own) if at < now]
    own = own[-among:] if among else own
    kept = []
    for event in reversed(own):
        alike = [one for one in kept if each is None or one[each] == event[each]]
        if where(event) and len(alike) < length:
            kept.append(event)
    return kept[::-1]


def written_out(events: list[dict], samples: pa.Table, **options) -> pa.Table:
    """Returns samples with their histories as columns of lists."""
    rows = samples.select(["who", "now"]).to_pylist()
    found = [history_of(events, row["who"], row["now"], **options) for row in rows]
    for name, column in LISTS.items():
        lists = [[event[column] for event in one] for one in found]
        samples = samples.append_column(name, pa.array(lists, pa.list_(EVENTS.field(column).type)))
    return samples
