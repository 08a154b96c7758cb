"""Whether a user likes a film of MovieLens-1M, by the protocol of AutoInt and DCN-V2."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from benchmarks.tables.data import movielens
from benchmarks.tables.published import Published, evaluated, train, write
from benchmarks.tables.scores import Scores
from benchmarks.tables.splits import random_shares

pc: Any = pyarrow.compute  # whose functions are made when it is imported, so that checkers do not know them
IDS = ("user_id", "item_id", "age", "gender", "occupation", "release_year")


def prepare(packages: Path, folder: Path, to_choose: bool) -> Iterator[Path]:
    """Writes a random split of 8:1:1; ratings above 3 are liked, those below are not, and 3 is left out."""
    rows, users, items = (movielens(packages, "ml-1m", part) for part in ("inter", "user", "item"))
    rows = rows.filter(pc.not_equal(rows["rating"], 3)).join(users, "user_id").join(items, "item_id")
    rows = rows.sort_by([("user_id", "ascending"), ("item_id", "ascending")])  # a join has no order
    genres = pc.split_pattern(rows["genre"], " ").combine_chunks()
    columns = {name: _numbered(rows[name]) for name in IDS}
    columns["genres"] = pa.ListArray.from_arrays(genres.offsets, pa.array(_numbered(genres.values)))
    columns["liked"] = pc.cast(pc.greater(rows["rating"], 3), pa.float32())
    table, parts = pa.table(columns), ("train", "validation", "test")
    for name, part in zip(parts, random_shares(table.num_rows, (0.8, 0.1, 0.1)), strict=True):
        if not (to_choose and name == "test"):
            write(folder, name, table.take(part))
    yield folder


def _numbered(values: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Returns the place of each value among all, in their order."""
    return np.unique(pc.cast(values, pa.string()).fill_null("").to_numpy(zero_copy_only=False), return_inverse=True)[1]


def measure(folder: Path, config: Path, out: Path, flags: list[str]) -> Scores:
    """Trains, and returns the metrics of the checkpoint that is the best on validation."""
    splits = [split for split in ("train", "validation", "test") if (folder / f"{split}.parquet").exists()]
    files = [word for split in splits for word in (f"--data.{split}", f"{folder}/{split}.parquet")]
    train(config, out, [*files, *flags])
    found = evaluated(out, splits[-1])
    return {"AUC": found["auc"], "log loss": found["log_loss"]}


TABLE = Published(
    source="[DCN-V2](https://arxiv.org/abs/2008.13535), MovieLens-1M",
    metrics=("AUC", "log loss"),
    rows={
        "DeepFM": (0.8932, 0.3202),
        "DCN": (0.8935, 0.3197),
        "xDeepFM": (0.8923, 0.3251),
        "DCN-V2": (0.8964, 0.3160),
    },
    ours={"deepfm": "dcn_v2"},
    prepare=prepare,
    measure=measure,
)
