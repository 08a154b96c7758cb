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
ITEMS, LONGEST, SHORTEST = 10_000, 200, 50
HISTORIES, TEST_HISTORIES = 4096, 1024
NO_ITEM = -1


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


def histories(folder: Path) -> tuple[list[int], int]:
    """Writes items after histories of earlier ones, with labels by the item; returns rows of tables and no dense."""
    random = np.random.default_rng(0)
    effects = random.standard_normal(ITEMS)
    for split, count in (("train", HISTORIES), ("test", TEST_HISTORIES)):
        ids = random.integers(0, ITEMS, (count, LONGEST + 1))
        lengths = random.integers(SHORTEST, LONGEST + 1, count)
        ids[np.arange(LONGEST + 1) < LONGEST - lengths[:, None]] = NO_ITEM
        labels = (random.random(count) < 1 / (1 + np.exp(-effects[ids[:, -1]]))).astype(np.float32)
        write_histories(folder, split, ids, labels)
    return [ITEMS], 0


def write_histories(folder: Path, split: str, ids: np.ndarray, labels: np.ndarray) -> None:
    """Writes the rows of a split: in each the history, after `NO_ITEM` where it is shorter, and last the item."""
    lists = pa.array([row[row != NO_ITEM] for row in ids[:, :-1]], pa.list_(pa.int64()))
    columns = {"item": ids[:, -1], "history": lists, "label": labels}
    (folder / split).mkdir(parents=True)
    pq.write_table(pa.table(columns), folder / split / "part-0.parquet")
    np.savez(folder / f"{split}.npz", dense=np.empty((len(ids), 0), np.float32), ids=ids, labels=labels)


def write(folder: Path, split: str, dense: np.ndarray, ids: np.ndarray, labels: np.ndarray) -> None:
    """Writes the rows of a split."""
    columns = {f"d{place}": values for place, values in enumerate(dense.T)}
    columns |= {f"f{place}": values for place, values in enumerate(ids.T)}
    (folder / split).mkdir(parents=True)
    pq.write_table(pa.table(columns | {"label": labels}), folder / split / "part-0.parquet")
    np.savez(folder / f"{split}.npz", dense=dense, ids=ids, labels=labels)
