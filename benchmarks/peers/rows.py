"""Makes the rows that all peers train on, as arrays and as the same rows in Parquet files."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.baselines import read_samples
from trainer.config.root import load_config

MOVIELENS = ("item_id", "gender", "occupation")
LARGE_ROWS, LARGE_TEST_ROWS, LARGE_DENSE = 131_072, 16_384, 13
LARGE_TABLES = [1000 * (1 + place % 13) for place in range(26)]


def movielens(folder: Path) -> tuple[list[int], int]:
    """Writes MovieLens with three tables and five dense features; returns rows of tables and the number of dense."""
    data = load_config("movielens").data
    for split, source in (("train", data.train), ("test", data.test)):
        table = pq.read_table(source[0])
        dense = read_samples(table, data).dense.numpy().astype(np.float32)
        ids = np.stack([table[name].to_numpy() for name in MOVIELENS], 1).astype(np.int64)
        write(folder, split, dense, ids, table["label"].to_numpy().astype(np.float32))
    return [data.sparse[name].rows for name in MOVIELENS], len(data.dense)


def made_up(folder: Path) -> tuple[list[int], int]:
    """Writes rows of Criteo's shape whose labels follow from their ids; returns rows of tables and number of dense."""
    random = np.random.default_rng(0)
    effects = [random.standard_normal(rows).astype(np.float32) / 5 for rows in LARGE_TABLES]
    for split, count in (("train", LARGE_ROWS), ("test", LARGE_TEST_ROWS)):
        dense = random.standard_normal((count, LARGE_DENSE)).astype(np.float32)
        ids = np.stack([random.integers(0, rows, count) for rows in LARGE_TABLES], 1)
        logits = dense[:, 0] / 2 + sum(effect[ids[:, place]] for place, effect in enumerate(effects))
        write(folder, split, dense, ids, (random.random(count) < 1 / (1 + np.exp(-logits))).astype(np.float32))
    return LARGE_TABLES, LARGE_DENSE


def write(folder: Path, split: str, dense: np.ndarray, ids: np.ndarray, labels: np.ndarray) -> None:
    """Writes the rows of a split."""
    columns = {f"d{place}": values for place, values in enumerate(dense.T)}
    columns |= {f"f{place}": values for place, values in enumerate(ids.T)}
    (folder / split).mkdir(parents=True)
    pq.write_table(pa.table(columns | {"label": labels}), folder / split / "part-0.parquet")
    np.savez(folder / f"{split}.npz", dense=dense, ids=ids, labels=labels)
