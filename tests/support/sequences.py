"""A small data set with histories, and configurations of models that read them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jobs import config

ITEMS, LONGEST, NOW = 60, 5, 1_700_000_000


def write_histories(folder: Path, rows: int, seed: int = 0) -> Path:
    """Writes items with histories of 0 to 9 items, nulls among both: a user likes an item beside one of the history.

    The catalogue of the items is `items_of(folder)`.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    item = random.integers(0, ITEMS, rows)
    history = [random.integers(0, ITEMS, random.integers(0, 10)).tolist() for _ in range(rows)]
    near = [any(abs(one - other) < 8 for other in past[-LONGEST:]) for one, past in zip(item, history, strict=True)]
    columns = {
        "item": pa.array([None if row % 17 == 3 else int(one) for row, one in enumerate(item)], pa.int32()),
        "history": pa.array(
            [None if row % 13 == 5 else past for row, past in enumerate(history)], pa.list_(pa.int64())
        ),
        "city": pa.array(random.integers(0, 20, rows)),
        "d0": pa.array(random.standard_normal(rows).astype(np.float32)),
        "d1": pa.array(random.standard_normal(rows).astype(np.float32)),
        "label": pa.array((random.random(rows) < np.where(near, 0.8, 0.2)).astype(np.float32)),
        "bought": pa.array((random.random(rows) < np.where(near, 0.4, 0.1)).astype(np.float32)),
    }
    past = [None if row % 13 == 5 else len(one) for row, one in enumerate(history)]
    steps = [None if length is None else random.integers(1, 90_000, length).cumsum() for length in past]
    columns |= {
        "rated": pa.array([None if n is None else random.integers(0, 5, n) for n in past], pa.list_(pa.int64())),
        "at": pa.array([None if one is None else NOW - one[::-1] for one in steps], pa.list_(pa.int64())),
        "now": pa.array(np.full(rows, NOW)),
        "number": item,
    }
    columns["seconds"] = pa.array([None if n is None else random.standard_normal(n) for n in past])
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=64)
    items = {
        "item": pa.array(np.arange(ITEMS), pa.int32()),
        "number": np.arange(ITEMS),
        "count": np.arange(ITEMS) % 7 + 1,
    }
    pq.write_table(pa.table(items), items_of(folder))
    return folder


def items_of(data: Path) -> Path:
    """Returns the file of the catalogue."""
    return data.with_suffix(".items.parquet")


def sequence_config(data: Path, model: str, **changes: object) -> dict:
    """Returns the configuration of a model that reads histories; `changes` are as in `jobs.config`."""
    tree = config(data, model={"name": model, "embedding_dim": 16, "over_layers": [16]}, **changes)
    tree["model"] |= {"target": "item", "history": "history"}
    shared = {"rows": ITEMS, "table": "films", "pooling": "none"}
    tree["data"]["sparse"] = {
        "history": shared | {"max_ids": LONGEST, "hotness": 3.2},
        "city": {"rows": 20},
        "item": shared | {"max_ids": 1},
    }
    if model == "hstu":
        rated = {"rows": 5, "pooling": "none", "max_ids": LONGEST, "hotness": 3.2, "weights": "seconds"}
        tree["data"]["sparse"]["rated"] = rated
        tree["model"]["actions"] = ["rated"]
    if model in ("hstu", "recency", "bst"):
        times = {"rows": 2**31 - 1, "pooling": "raw"}
        tree["data"]["sparse"] |= {"at": times | {"max_ids": LONGEST, "hotness": 3.2}, "now": times | {"max_ids": 1}}
        tree["model"] |= {"history_times": "at", "target_time": "now"}
    return tree


def retrieval_config(data: Path, model: str, **changes: object) -> dict:
    """Returns the configuration of a model that finds the next item among all of them."""
    tree = sequence_config(data, model, **changes)
    tree["data"] |= {
        "dense": {},
        "groups": ["number"],
        "catalogue": {"items": [str(items_of(data))], "id": "number", "weight": "count", "negatives": 4},
    }
    if model != "mind":  # which reads the user's other features, too
        del tree["data"]["sparse"]["city"], tree["model"]["over_layers"]
    tree["model"]["item_features"] = ["item"]
    metrics = ["recall@10", "ndcg@10", "mrr"]
    tree["tasks"] = {
        "next": {"label": "label", "loss": "sampled_softmax", "log_q": True, "group": "number", "metrics": metrics}
    }
    return tree
