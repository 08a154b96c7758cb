"""Writes users who mostly like items of their favourite genre, and the catalogue of all items."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, USERS, ITEMS, GENRES = 12_000, 200, 400, 8
FOLDER = Path("data/tastes")

random = np.random.default_rng(0)
genre = np.arange(ITEMS) % GENRES
favourite = random.integers(0, GENRES, USERS)
user = random.integers(0, USERS, ROWS)
of_favourite = random.integers(0, ITEMS // GENRES, ROWS) * GENRES + favourite[user]
item = np.where(random.random(ROWS) < 0.9, of_favourite, random.integers(0, ITEMS, ROWS))
table = pa.table({"user": user, "item": item, "genre": genre[item], "liked": np.ones(ROWS, bool)})
FOLDER.mkdir(parents=True, exist_ok=True)
pq.write_table(table.slice(0, 10_000), FOLDER / "train.parquet", row_group_size=2000)
pq.write_table(table.slice(10_000), FOLDER / "validation.parquet")
pq.write_table(pa.table({"item": np.arange(ITEMS), "genre": genre}), FOLDER / "items.parquet")
