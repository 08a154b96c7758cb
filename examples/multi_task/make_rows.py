"""Writes rows with three labels: clicked, bought (only after a click), and the seconds that a user stayed."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS, USERS, ITEMS = 12_000, 300, 200
FOLDER = Path("data/shop")


def chance(logit: np.ndarray) -> np.ndarray:
    """Draws for each row whether an event happens, given the logit of its probability."""
    return random.random(ROWS) < 1 / (1 + np.exp(-logit))


random = np.random.default_rng(0)
user, item = random.integers(0, USERS, ROWS), random.integers(0, ITEMS, ROWS)
price = random.lognormal(3, 1, ROWS)
appeal, patience = random.standard_normal(ITEMS), random.standard_normal(USERS)
clicked = chance(appeal[item] - 1)
bought = clicked & chance(1.5 - 0.5 * np.log(price))
seconds = np.where(clicked, np.exp(2 + patience[user]), 0.0)
columns = {"user": user, "item": item, "price": price, "clicked": clicked, "bought": bought, "seconds": seconds}
table = pa.table(columns)
FOLDER.mkdir(parents=True, exist_ok=True)
pq.write_table(table.slice(0, 10_000), FOLDER / "train.parquet", row_group_size=2000)
pq.write_table(table.slice(10_000), FOLDER / "validation.parquet")
