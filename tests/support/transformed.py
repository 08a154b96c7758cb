"""A small data set for every transform of features, and its configuration."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jobs import config

ROWS = 300
NOW = "2026-01-31"
EDGES = [-10.0, 0.0, 2.5, 40.0]
DENSE = {
    "price": {"transform": "log3"},
    "price_clipped": {"column": "price", "clip": [-1.5, 60.0], "missing": 70.0, "mean": 3.0, "std": 25.0},
    "price_log": {"column": "price", "clip": [0.0, 1e6], "transform": "log1p", "missing": -4.0, "mean": 1.0},
    "price_missing": {"column": "price", "transform": "is_missing", "mean": 0.25, "std": 0.5},
    "word_missing": {"column": "word", "transform": "is_missing"},
    "ratio_missing": {"column": "ratio", "transform": "is_missing"},
    "hour": {"column": "seen", "transform": "hour", "missing": -1.0, "mean": 12.0, "std": 6.0},
    "weekday": {"column": "seen", "transform": "weekday", "missing": 7.0},
    "age": {"column": "born", "transform": "age", "now": NOW, "clip": [0.0, 20_000.0], "missing": -5.0, "std": 5000.0},
    "idle": {"column": "seconds", "transform": "age", "now": NOW, "mean": 8000.0, "std": 5000.0},
}
SPARSE = {
    "price_bucket": {"column": "price", "buckets": EDGES, "rows": 9},
    "seen_hour": {"column": "seen", "transform": "hour", "rows": 24},
    "seen_weekday": {"column": "seen", "transform": "weekday", "rows": 7},
    "seconds_hour": {"column": "seconds", "transform": "hour", "rows": 30, "pooling": "mean"},
    "place": {"rows": 40, "offset": -1},
    "place_wrapped": {"column": "place", "rows": 17, "offset": 1000, "ids": "modulo"},
    "user": {"rows": 41, "ids": "hash"},
    "user_salted": {"column": "user", "rows": 41, "ids": "hash", "salt": 7},
    "user_shifted": {"column": "user", "rows": 31, "ids": "hash", "offset": 5},
    "word_salted": {"column": "word", "rows": 23, "ids": "hash", "salt": 1234567890123},
    "user_word": {"columns": ["user", "word"], "rows": 97, "ids": "hash"},
    "word_user": {"columns": ["word", "user"], "rows": 97, "ids": "hash"},
    "three": {"columns": ["word", "place", "wide"], "rows": 89, "ids": "hash", "salt": 3},
    "last": {"column": "tags", "rows": 30, "max_ids": 2},
    "first": {"column": "tags", "rows": 30, "max_ids": 2, "keep": "first", "pooling": "mean"},
    "all_tags": {"column": "tags", "rows": 35, "offset": 5},
    "terms": {"rows": 29, "ids": "hash", "salt": 9, "max_ids": 3, "keep": "first"},
}


def write_transformed(folder: Path, seed: int = 0) -> Path:
    """Writes rows with nulls in every column: numbers, ids, strings, times of each kind, lists."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)

    def some(values, every):
        return [None if row % every == every - 1 else value for row, value in enumerate(values)]

    def lists(values):
        return [[values[i] for i in random.integers(0, len(values), size)] for size in random.integers(0, 6, ROWS)]

    words = [f"word {n} é" for n in range(20)]
    begin = datetime(1969, 12, 20, 5, 59, 59, 250_000, tzinfo=UTC)
    seen = [begin + timedelta(seconds=int(n), milliseconds=int(n) % 7) for n in random.integers(0, 1_800_000_000, ROWS)]
    price = np.concatenate([[-2.5, 0.0, 2.5, 40.0, -1.5, 60.0], random.normal(5, 30, ROWS - 6).clip(-2.5)])
    columns = {
        "price": pa.array(some(price, 7), pa.float64()),
        "seen": pa.array(some(seen, 11), pa.timestamp("ms", "Europe/Berlin")),
        "born": pa.array(some([one.date() for one in seen], 5), pa.date32()),
        "seconds": pa.array([int(n) for n in random.integers(10**8, 1_900_000_000, ROWS)], pa.int64()),
        "place": pa.array(some([int(n) for n in random.integers(1, 41, ROWS)], 6), pa.int8()),
        "user": pa.array(some([int(n) * 10**16 + 7 for n in random.integers(-50, 50, ROWS)], 9), pa.int64()),
        "wide": pa.array(some([int(n) for n in random.integers(0, 2**64, ROWS, dtype=np.uint64)], 14), pa.uint64()),
        "word": pa.array(some([words[n] for n in random.integers(0, 20, ROWS)], 8)),
        "tags": pa.array(some(lists([*range(30), None]), 10), pa.list_(pa.int16())),
        "terms": pa.array(some(lists([*words, None]), 12), pa.list_(pa.string())),
        "ratio": pa.array([(None, float("nan"), row / 7)[row % 3] for row in range(ROWS)]),
        "label": pa.array(random.integers(0, 2, ROWS).astype(np.float32)),
    }
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=64)
    return folder


def transformed_config(data: Path, **changes: object) -> dict:
    """Returns a configuration with every transform; `changes` are as in `jobs.config`."""
    tree = config(data, data__validation=[str(data)], **changes)
    tree["data"] |= {"dense": DENSE, "sparse": SPARSE}
    tree["model"] = {"embedding_dim": 8, "dense_layers": [8], "over_layers": [16]}
    return tree
