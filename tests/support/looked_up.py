"""Rows for expressions, lookups and overlaps, their features, and the values that a loop in Python finds."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jobs import config

ROWS, KEYS = 300, 6
COUNTRIES = [f"land {n} é" for n in range(KEYS)]
DENSE = {
    "rate": {"expression": "clicks / (views - 1)", "missing": 0.25, "clip": [-3.0, 3.0], "mean": 0.1, "std": 2.0},
    "rate known": {"expression": "clicks / (views - 1)", "transform": "is_missing"},
    "since": {"expression": 'log1p((now - column("last seen")) / 3600)', "missing": -1.0},
    "most": {"expression": "where(clicks > views, max(clicks, 2.5), coalesce(views, 7))"},
    "price": {"column": "prices", "lookup": "country", "missing": 2.0, "transform": "log1p"},
    "price known": {"column": "prices", "lookup": "country", "transform": "is_missing"},
    "score": {"column": "scores", "lookup": "item", "lookup_in": "items", "missing": -0.5, "std": 3.0},
    "common": {"column": "items", "overlap": "others"},
    "common share": {"column": "items", "overlap": "others", "overlap_as": "share", "missing": -1.0},
    "share of other": {"column": "items", "overlap": "others", "overlap_as": "share_of_other", "missing": 0.5},
    "alike": {"column": "items", "overlap": "others", "overlap_as": "jaccard"},
    "alike known": {"column": "items", "overlap": "others", "overlap_as": "jaccard", "transform": "is_missing"},
    "had": {"column": "item", "overlap": "items", "overlap_as": "any"},
    "word had": {"column": "country", "overlap": "words", "overlap_as": "any"},
}
SPARSE = {
    "shops": {"rows": 40, "lookup": "country"},
    "last shop": {"column": "shops", "rows": 40, "lookup": "country", "max_ids": 1, "ids": "hash", "salt": 3},
    "texts": {"rows": 50, "ids": "hash", "lookup": "item"},
    "of item": {"column": "others beside", "rows": 30, "lookup": "item", "lookup_in": "items", "pooling": "mean"},
    "item": {"rows": 30},
}


def columns(seed: int = 0) -> dict[str, list]:
    """Returns the columns as Python's objects, with nulls, empty lists and keys that occur several times in a map."""
    random = np.random.default_rng(seed)

    def some(make, nulls=0.1):
        return [None if random.random() < nulls else make() for _ in range(ROWS)]

    def lists(make, longest=6):
        return some(lambda: [None if random.random() < 0.1 else make() for _ in range(random.integers(0, longest))])

    def maps(key, value):
        return some(lambda: [(key(), None if random.random() < 0.1 else value()) for _ in range(random.integers(0, 7))])

    def number(low, high):
        return int(random.integers(low, high))

    def country():
        return COUNTRIES[number(0, KEYS)]

    items = lists(lambda: number(0, KEYS))
    beside = [None if one is None else [number(0, 30) for _ in one] for one in items]
    return {
        "clicks": some(lambda: float(number(0, 5))),
        "views": some(lambda: number(0, 5)),
        "now": [1_700_000_000 + number(0, 10**6) for _ in range(ROWS)],
        "last seen": some(lambda: 1_699_999_000 + number(0, 10**6)),
        "country": some(country),
        "prices": maps(country, lambda: round(float(random.normal(5, 1)), 3)),
        "item": some(lambda: number(0, KEYS)),
        "items": items,
        "scores": [None if one is None else [float(n) / 4 for n in one] for one in beside],
        "others": lists(lambda: number(0, KEYS)),
        "others beside": beside,
        "words": lists(country),
        "shops": maps(country, lambda: number(0, 40)),
        "texts": maps(lambda: number(0, KEYS), country),
        "label": [float(number(0, 2)) for _ in range(ROWS)],
    }


TYPES = {
    "now": pa.timestamp("s", "UTC"),
    "prices": pa.map_(pa.string(), pa.float32()),
    "item": pa.int64(),
    "items": pa.list_(pa.int16()),
    "scores": pa.list_(pa.float64()),
    "others": pa.large_list(pa.int64()),
    "shops": pa.map_(pa.string(), pa.int32()),
    "texts": pa.map_(pa.int32(), pa.string()),
}


def table_of(columns: dict[str, list]) -> pa.Table:
    """Returns the columns in Arrow."""
    return pa.table({name: pa.array(values, TYPES.get(name)) for name, values in columns.items()})


def write_looked_up(folder: Path, seed: int = 0) -> Path:
    """Writes a file of the columns."""
    folder.mkdir(parents=True)
    pq.write_table(table_of(columns(seed)), folder / "part.parquet", row_group_size=64)
    return folder


def looked_up_config(data: Path, **changes: object) -> dict:
    """Returns a configuration with all features; `changes` are as in `jobs.config`."""
    tree = config(data, **changes)
    tree["data"] |= {"dense": DENSE, "sparse": SPARSE}
    tree["model"] = {"embedding_dim": 8, "dense_layers": [8], "over_layers": [16]}
    return tree


def rate(clicks, views):
    return None if clicks is None or views is None or views == 1 else clicks / (views - 1)


def most(clicks, views):
    if clicks is None or views is None:
        return None
    return max(clicks, 2.5) if clicks > views else float(views)


def last_of(pairs, key):
    found = [value for one, value in pairs or () if one == key and one is not None]
    return found[-1] if found else None


def overlap(one, other, kind):
    first, second = ({id for id in ids or () if id is not None} for ids in (one, other))
    common, both = len(first & second), len(first | second)
    if kind in ("count", "any"):
        return float(common if kind == "count" else common > 0)
    under = {"share": len(first), "share_of_other": len(second), "jaccard": both}[kind]
    return common / under if under else None


def or_else(missing, value):
    return missing if value is None else value


def log1p_or(missing, value):
    return missing if value is None or value <= -1 else math.log1p(value)


def pairs(keys, values):
    return [*zip(keys or (), values or (), strict=True)]


EXPECTED = {
    "rate": lambda r: (min(max(or_else(0.25, rate(r["clicks"], r["views"])), -3.0), 3.0) - 0.1) / 2,
    "rate known": lambda r: float(rate(r["clicks"], r["views"]) is None),
    "since": lambda r: log1p_or(-1.0, None if r["last seen"] is None else (r["now"] - r["last seen"]) / 3600),
    "most": lambda r: or_else(0.0, most(r["clicks"], r["views"])),
    "price": lambda r: math.log1p(or_else(2.0, last_of(r["prices"], r["country"]))),
    "price known": lambda r: float(last_of(r["prices"], r["country"]) is None),
    "score": lambda r: or_else(-0.5, last_of(pairs(r["items"], r["scores"]), r["item"])) / 3,
    "common": lambda r: overlap(r["items"], r["others"], "count"),
    "common share": lambda r: or_else(-1.0, overlap(r["items"], r["others"], "share")),
    "share of other": lambda r: or_else(0.5, overlap(r["items"], r["others"], "share_of_other")),
    "alike": lambda r: or_else(0.0, overlap(r["items"], r["others"], "jaccard")),
    "alike known": lambda r: float(overlap(r["items"], r["others"], "jaccard") is None),
    "had": lambda r: overlap([r["item"]], r["items"], "any"),
    "word had": lambda r: overlap([r["country"]], r["words"], "any"),
}
"""The value of each dense feature for a row in Python."""


def rows_of(table: dict[str, list]) -> list[dict]:
    """Returns the rows of columns."""
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def ids_of(found: list, key: object) -> list:
    """Returns all values of a key."""
    return [value for one, value in found if one == key and one is not None and value is not None]
