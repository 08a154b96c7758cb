"""Ratings of MovieLens-100k, as Surprise compares its algorithms: five folds."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.tables.data import movielens
from benchmarks.tables.published import Published, read_parts, train, write
from benchmarks.tables.scores import Scores, rating
from benchmarks.tables.splits import folds, random_shares
from trainer.commands import read_command


def prepare(packages: Path, folder: Path, to_choose: bool) -> Iterator[Path]:
    """Writes the table's folds."""
    rows = movielens(packages, "ml-100k").drop_columns(["timestamp"])
    for number, tested in enumerate(folds(rows.num_rows)):
        known = np.setdiff1d(np.arange(rows.num_rows), tested)
        if to_choose:
            known, tested = (known[part] for part in random_shares(len(known), (0.9, 0.1)))
        for name, chosen in (("train", known), ("test", tested)):
            write(folder / str(number), name, rows.take(chosen))
        yield folder / str(number)


def measure(folder: Path, config: Path, out: Path, flags: list[str]) -> Scores:
    """Trains, predicts the ratings of the fold, and returns the errors."""
    train(config, out, ["--data.train", f"{folder}/train.parquet", *flags])
    words = ["--source", f"{folder}/test.parquet", "--to", f"{out}/ratings"]
    read_command(["predict", f"{out}/config.toml", "--out", str(out), *words])()
    truth = pq.read_table(folder / "test.parquet")["rating"].to_numpy()
    return rating(truth, np.array(read_parts(out / "ratings")["rating_value"]))


TABLE = Published(
    source="[Surprise](https://github.com/NicolasHug/Surprise#benchmarks), MovieLens-100k",
    metrics=("RMSE", "MAE"),
    lower=True,
    rows={
        "SVD": (0.934, 0.737),
        "SVD++": (0.919, 0.721),
        "NMF": (0.963, 0.758),
        "Slope One": (0.946, 0.743),
        "k-NN": (0.98, 0.774),
        "centered k-NN": (0.951, 0.749),
        "k-NN baseline": (0.931, 0.733),
        "co-clustering": (0.963, 0.753),
        "baseline": (0.944, 0.748),
        "random": (1.518, 1.219),
    },
    ours={"deepfm": "surprise"},
    prepare=prepare,
    measure=measure,
)
