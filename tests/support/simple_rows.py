"""Small rows of users and items with all kinds of labels, in three splits."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SPLITS = {"train": 900, "validation": 300, "test": 400}
USERS, ITEMS, COUNTRIES = 40, 30, 5


def table_of(rows: int, seed: int) -> pa.Table:
    """Returns rows whose labels depend on who and what, and a little on a number."""
    random = np.random.default_rng(seed)
    user, item = random.integers(0, USERS, rows), random.integers(0, ITEMS, rows)
    country, number = user % COUNTRIES, random.standard_normal(rows).astype(np.float32)
    taste = np.sin(user) + np.cos(2 * item) + 0.5 * number
    tags = [random.choice(9, random.integers(0, 4), replace=False).tolist() for _ in range(rows)]
    return pa.table(
        {
            "user": user.astype(np.int32),
            "item": item.astype(np.int32),
            "country": country.astype(np.int32),
            "number": number,
            "tags": pa.array(tags, pa.list_(pa.int32())),
            "clicked": (random.random(rows) < 1 / (1 + np.exp(-taste))).astype(np.float32),
            "stars": (3 + taste + 0.3 * random.standard_normal(rows)).astype(np.float32),
            "kind": np.clip(np.round(taste + 1), 0, 2).astype(np.float32),
            "weight": random.integers(1, 4, rows).astype(np.float32),
        }
    )


def write_splits(folder: Path) -> Path:
    """Writes the splits, `train.parquet` in row groups of 100 rows and the others, and returns the directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, rows) in enumerate(SPLITS.items()):
        pq.write_table(table_of(rows, seed), folder / f"{split}.parquet", row_group_size=100)
    return folder


def config_of(folder: Path, **sections: dict) -> dict:
    """Returns a configuration of these rows, one task unless `sections` has others."""
    data = {
        **{split: [str(folder / f"{split}.parquet")] for split in SPLITS},
        "dense": {"number": {}},
        "sparse": {
            "user": {"rows": USERS},
            "item": {"rows": ITEMS},
            "country": {"rows": COUNTRIES},
            "tags": {"rows": 9},
        },
        "labels": ["clicked"],
        "global_batch_size": 96,
    }
    tree = {
        "data": data | sections.pop("data", {}),
        "model": {"embedding_dim": 4, "dense_layers": [4], "over_layers": [4]},
        "train": {"epochs": 1},
        "report": {"tensorboard": False, "interval_steps": 1},
    }
    return tree | sections
