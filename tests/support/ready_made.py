"""The ready-made configuration of every built-in model, on a small data set of its form."""

import random
from pathlib import Path

from benchmarks.bench.models import make_ratings, movielens_config
from benchmarks.bench.training import changed
from trainer.models.builder import MODELS

NAMES = [name for name in MODELS if name not in ("recency", "mind")]  # which have presets for the next film alone
RATINGS, BATCH = 800, 64


def write_ratings(folder: Path) -> Path:
    """Writes the data set and returns its folder: 640 ratings to train on, 80 in each other split."""
    make_ratings(str(folder / "ratings"), RATINGS)
    return folder / "ratings"


def ready_made(name: str, data: Path, **changes: object) -> dict:
    """Returns the configuration of a model; `changes` are `section__key=value`."""
    small = {"data.global_batch_size": BATCH, "data.shuffle_window_rows": 50, "report.tensorboard": False}
    small |= {"report.interval_steps": 1, "evaluate.every_steps": 0, "train.epochs": None, "train.steps": 10}
    small["checkpoint.keep.best"] = None  # which needs data.validation
    given = {path.replace("__", "."): value for path, value in changes.items()}
    return changed(movielens_config(name, str(data)), small | given).model_dump(mode="json", exclude_none=True)


def sampled(everything: list, count: int, whole: bool) -> list:
    """Returns so many of a matrix, or all of it."""
    return everything if whole else random.Random(0).sample(everything, count)
