"""A small data set with histories, and configurations of models that read them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jobs import config

ITEMS, LONGEST = 60, 5


def write_histories(folder: Path, rows: int, seed: int = 0) -> Path:
    """Writes items with histories of 0 to 9 items, nulls among both: a user likes an item beside one of the history."""
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
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=64)
    return folder


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
    return tree
