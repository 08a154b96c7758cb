"""A clean data set with a column of every kind, and its configuration, for faults to be planted in."""

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = {"train": 1000, "validation": 1000, "test": 1000}  # of each file
FILES = {"train": 4, "validation": 1, "test": 1}
ROW_GROUP = 250


@dataclasses.dataclass
class DataSet:
    """Files of columns by split, and the section `data`, both to be changed before they are written."""

    splits: dict[str, list[dict[str, pa.Array]]]
    data: dict
    row_group: int = ROW_GROUP

    def columns(self, split: str = "train"):
        """Yields the columns of each file of a split."""
        yield from self.splits[split]

    def change(self, name: str, change, split: str = "train") -> None:
        """Replaces a column of each file of a split by a function of its NumPy values and of all columns."""
        for columns in self.columns(split):
            columns[name] = pa.array(change(columns[name].to_numpy(zero_copy_only=False).copy(), columns))

    def write(self, folder: Path) -> dict:
        """Writes the files and returns the configuration."""
        for split, files in self.splits.items():
            (folder / split).mkdir(parents=True)
            for number, columns in enumerate(files):
                file = folder / split / f"part-{number}.parquet"
                pq.write_table(pa.table(columns), file, row_group_size=self.row_group)
            self.data[split] = [str(folder / split)]
        model = {"embedding_dim": 8, "dense_layers": [8], "over_layers": [8]}
        return {"data": self.data, "model": model, "train": {"steps": 2}, "report": {"tensorboard": False}}


def clean_data(seed: int = 0) -> DataSet:
    """Returns 4,000 rows to train on and 1,000 in each other split, of which nothing is wrong."""
    random, start, splits = np.random.default_rng(seed), 0, {}
    for split, files in FILES.items():
        splits[split] = []
        for _ in range(files):
            splits[split].append(_rows(random, ROWS[split], start))
            start += ROWS[split]
    data = {
        "dense": {"price": {}, "age": {"missing": 40.0, "mean": 40.0, "std": 10.0}},
        "sparse": {
            "item": {"rows": 200},
            "city": {"rows": 256, "ids": "hash"},
            "tags": {"rows": 64, "ids": "modulo", "hotness": 2.0},
        },
        "weight": "importance",
        "global_batch_size": 64,
    }
    return DataSet(splits, data)


def _rows(random: np.random.Generator, rows: int, start: int) -> dict[str, pa.Array]:
    price, item = random.standard_normal(rows), random.zipf(1.5, rows) % 200
    chance = 1 / (1 + np.exp(-(price + 0.5 * (item < 3) - 0.5)))
    age = random.normal(40, 10, rows)
    return {
        "when": pa.array(np.arange(start, start + rows)),
        "price": pa.array(price),
        "age": pa.array([None if n % 9 == 4 else value for n, value in enumerate(age)], pa.float64()),
        "item": pa.array(item.astype(np.int32)),
        "city": pa.array([f"city {n}" for n in random.integers(0, 40, rows)]),
        "tags": pa.array([random.integers(0, 64, size).tolist() for size in random.integers(1, 4, rows)]),
        "importance": pa.array(random.choice([1.0, 2.0], rows)),
        "label": pa.array((random.random(rows) < chance).astype(np.float32)),
    }
