"""A small data set with a column for every rule and type of the data section, and its configuration."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jobs import config

ROWS = 300
ENDS = (-(2**63), -(2**63) + 1, 2**63 - 1, 0, -1)


def write_columns(folder: Path, seed: int = 0) -> Path:
    """Writes 300 rows: nulls in every column, ids of 64 bits up to both ends, strings, lists, empty ones among them."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)

    def some(values, every):
        return [None if row % every == every - 1 else value for row, value in enumerate(values)]

    def lists(values):
        sizes = random.integers(0, 5, ROWS)
        return [[values[i] for i in random.integers(0, len(values), size)] for size in sizes]

    wide = [int(n) * 10**16 + 7 for n in random.integers(-50, 50, ROWS)]
    wide[: len(ENDS)] = ENDS
    ends, left = [n % 2**64 for n in ENDS], ROWS - len(ENDS)
    words = [f"word {n} é" for n in range(40)]
    columns = {
        "count": pa.array(some([int(n) for n in random.integers(0, 1000, ROWS)], 7), pa.int32()),
        "price": pa.array(some(random.random(ROWS) * 100 - 2, 11), pa.float64()),
        "flag": pa.array(some([bool(n) for n in random.integers(0, 2, ROWS)], 5), pa.bool_()),
        "plain": pa.array(some([int(n) for n in random.integers(0, 50, ROWS)], 6), pa.int32()),
        "wrapped": pa.array(some(wide, 9), pa.int64()),
        "unsigned": pa.array([*ends, *random.integers(0, 2**64, left, dtype=np.uint64).tolist()], pa.uint64()),
        "hashed": pa.array(some(wide, 13), pa.int64()),
        "word": pa.array(some([words[n] for n in random.integers(0, 40, ROWS)], 8)),
        "tags": pa.array(some(lists([*range(30), None]), 10), pa.list_(pa.int64())),
        "terms": pa.array(some(lists([*words, None]), 12), pa.large_list(pa.string())),
        "listed": pa.array([words[min(n, 39)] for n in random.geometric(0.1, ROWS)]),
        "user": pa.array(some(wide, 14), pa.int64()),
        "item": pa.array(some([int(n) for n in random.integers(0, 60, ROWS)], 17), pa.int64()),
        "history": pa.array(some(lists([*range(60), None]), 10), pa.list_(pa.int32())),
        "label": pa.array(random.integers(0, 2, ROWS).astype(np.float32)),
        "bought": pa.array(random.integers(0, 2, ROWS).astype(np.float32)),
    }
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=64)
    return folder


def columns_config(data: Path, vocabulary: Path, **changes: object) -> dict:
    """Returns a configuration with every rule; `changes` are as in `jobs.config`."""
    tree = config(data, data__validation=[str(data)], **changes)
    tree["data"] |= {"labels": ["label", "bought"]}
    tree["data"]["dense"] = {
        "count": {"transform": "log1p", "mean": 3.0, "std": 2.5, "missing": 4.0},
        "price": {"transform": "log3"},
        "flag": {"missing": 0.5, "mean": 0.1},
    }
    shared = {"rows": 60, "table": "films", "pooling": "none"}
    tree["data"]["sparse"] = {
        "plain": {"rows": 50},
        "wrapped": {"rows": 37, "ids": "modulo"},
        "unsigned": {"rows": 37, "ids": "modulo", "table": "wrapped"},
        "hashed": {"rows": 41, "ids": "hash"},
        "word": {"rows": 23, "ids": "hash"},
        "tags": {"rows": 30, "pooling": "mean"},
        "terms": {"rows": 23, "ids": "hash", "table": "word"},
        "listed": {"rows": 50, "ids": "vocabulary", "vocabulary": str(vocabulary)},
        "user": {"rows": 60, "ids": "managed"},
        "history": shared | {"max_ids": 3},
        "item": shared | {"max_ids": 1},
    }
    tree["model"] = {"name": "din", "embedding_dim": 8, "over_layers": [16], "target": "item", "history": "history"}
    return tree
