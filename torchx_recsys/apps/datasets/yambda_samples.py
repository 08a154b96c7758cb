"""Makes samples of the events of users: which listens count, their ids, and the events before them.

Legend: `E` events of whole users, in the order of user and time; `R` samples.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.datasets.yambda_source import LIKE, LISTEN_PLUS, SKIP, Maps

HOUR, HOURS = 3600, 24
KINDS = (LISTEN_PLUS, SKIP, LIKE)
CROSSES = {
    "user_artist": (("uid", "artist_id"), 100_000_000),
    "user_album": (("uid", "album_id"), 40_000_000),
    "user_hour": (("uid", "hour"), 24_000_000),
    "item_hour": (("item_id", "hour"), 40_000_000),
    "artist_hour": (("artist_id", "hour"), 32_000_000),
    "user_organic": (("uid", "is_organic"), 2_000_000),
    "user_artist_hour": (("uid", "artist_id", "hour"), 40_000_000),
}
"""The columns of each cross, and the rows of its table, as published."""
LISTS = {
    "items_before": "item_id",
    "artists_before": "artist_id",
    "albums_before": "album_id",
    "actions_before": "action",
    "times_before": "timestamp",
}
"""The lists of a history, each with the column of the events."""
ROWS = 1 << 18  # samples that are made at once; with histories, elements of their lists
EVENTS = pa.schema(
    [
        *((name, pa.int32()) for name in ("uid", "item_id", "artist_id", "album_id")),
        ("timestamp", pa.int64()),
        ("action", pa.int8()),
    ]
)
SAMPLES = pa.schema(
    [
        ("label", pa.float32()),
        *((name, pa.int32()) for name in ("uid", "item_id", "artist_id", "album_id")),
        ("is_organic", pa.int8()),
        ("timestamp", pa.int64()),
        ("query_time", pa.int64()),
        *((name, pa.int32()) for name in CROSSES),
    ]
)
PRIMES = [
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
]


@dataclass(frozen=True)
class Rule:
    """Which listens are samples, and which events are in a history.

    Attributes:
        min_history: Events that a user must have before a sample, of any type.
        among: Of how many of the last events before a sample its history is chosen.
        per_kind: Most events of each kind in a history: listen_plus, skip and like.
        written: Whether samples have their histories as lists.
    """

    min_history: int
    among: int
    per_kind: int
    written: bool

    @property
    def schema(self) -> pa.Schema:
        """The columns of samples."""
        lists = [pa.field(name, pa.list_(EVENTS.field(of).type)) for name, of in LISTS.items()]
        return pa.schema([*SAMPLES, *(lists if self.written else [])])

    @property
    def rows_at_once(self) -> int:
        """How many samples are in memory at once."""
        return max(1, ROWS // (len(KINDS) * self.per_kind)) if self.written else ROWS


def with_attributes(events: dict[str, np.ndarray], maps: Maps) -> dict[str, np.ndarray]:
    """Returns events with `artist_id` and `album_id`."""
    artists, albums = maps.of(events["item_id"])
    return events | {"artist_id": artists, "album_id": albums}


def table_of(columns: Mapping[str, np.ndarray], schema: pa.Schema) -> pa.Table:
    """Returns columns in the types of a schema."""
    return pa.table([pa.array(columns[field.name]).cast(field.type) for field in schema], schema)


def samples(events: Mapping[str, np.ndarray], rule: Rule) -> Iterator[pa.Table]:
    """Yields the samples of users in the order of their events; `rule.schema` has the columns.

    Args:
        events: All events of these users by column, `[E]` each.
        rule: Which of them are samples.
    """
    uid, time, action = (events[name] for name in ("uid", "timestamp", "action"))
    at = np.arange(len(uid))
    of_user = _last_begin(np.append(True, uid[1:] != uid[:-1]))
    of_moment = _last_begin(np.append(True, (uid[1:] != uid[:-1]) | (time[1:] != time[:-1])))
    chosen = np.flatnonzero(((action == LISTEN_PLUS) | (action == SKIP)) & (at - of_user >= rule.min_history))
    counted = np.append(0, np.cumsum(action > 0))
    places = np.append(np.flatnonzero(action > 0), 0)
    for start in range(0, len(chosen), rule.rows_at_once):
        rows = chosen[start : start + rule.rows_at_once]
        stop, begin = of_moment[rows], of_user[rows]
        columns = {name: column[rows] for name, column in events.items()}
        # Of an event strictly before: one of the same moment may be the answer, such as a like of this listen.
        before = counted[stop] > counted[begin]
        columns["query_time"] = np.where(before, time[places[counted[stop] - 1]], time[rows])
        columns["label"] = action[rows] == LISTEN_PLUS
        table = table_of(columns | crosses(columns), SAMPLES)
        yield _with_histories(table, events, np.maximum(begin, stop - rule.among), stop, rule)


def _last_begin(begins: np.ndarray) -> np.ndarray:
    """Returns where the group of each event begins, `[E]`."""
    return np.maximum.accumulate(np.where(begins, np.arange(len(begins)), 0))


def crosses(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns the row of each cross, `[R]`, as published: by xxHash."""
    columns = {**columns, "hour": columns["timestamp"] // HOUR % HOURS}
    return {
        name: (xxh64(*(columns[one] for one in of)) % np.uint64(rows)).astype(np.int32)
        for name, (of, rows) in CROSSES.items()
    }


def xxh64(*columns: np.ndarray) -> np.ndarray:
    """Returns the XXH64 hash, of seed 0, of two or three integers as little-endian int64s, `[R]` uint64."""
    # The package xxhash takes one value a call, a hundred times the time for columns.
    assert len(columns) < 4, "32 bytes and more are hashed in another way"
    first, second, third, fourth, fifth = PRIMES
    hashed = np.full(len(columns[0]), fifth + np.uint64(8 * len(columns)))
    for column in columns:
        hashed ^= _rotated(column.astype(np.int64).view(np.uint64) * second, 31) * first
        hashed = _rotated(hashed, 27) * first + fourth
    hashed = (hashed ^ hashed >> np.uint64(33)) * second
    hashed = (hashed ^ hashed >> np.uint64(29)) * third
    return hashed ^ hashed >> np.uint64(32)


def _rotated(bits: np.ndarray, by: int) -> np.ndarray:
    return bits << np.uint64(by) | bits >> np.uint64(64 - by)


def _with_histories(
    table: pa.Table, events: Mapping[str, np.ndarray], first: np.ndarray, stop: np.ndarray, rule: Rule
) -> pa.Table:
    """Adds the histories if they are written out: the last events of each kind in `[first, stop)`, oldest first."""
    if not rule.written:
        return table
    places, rows = [], []
    for kind in KINDS:
        of_kind = np.flatnonzero(events["action"] == kind)
        end = np.searchsorted(of_kind, stop)
        begin = np.maximum(np.searchsorted(of_kind, first), end - rule.per_kind)
        sizes = end - begin
        rows.append(np.repeat(np.arange(len(sizes)), sizes))
        places.append(of_kind[np.arange(sizes.sum()) + np.repeat(begin - (np.cumsum(sizes) - sizes), sizes)])
    place, row = np.concatenate(places), np.concatenate(rows)
    place = place[np.lexsort((place, row))]
    offsets = pa.array(np.append(0, np.cumsum(np.bincount(row, minlength=len(stop)))), pa.int32())
    for name, column in LISTS.items():
        values = pa.array(events[column][place]).cast(EVENTS.field(column).type)
        table = table.append_column(name, pa.ListArray.from_arrays(offsets, values))
    return table
