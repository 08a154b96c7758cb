"""Compares every built-in model in the trainer with the same model in a bare torch loop."""

import itertools
import math
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

from benchmarks.bench.comparison import Comparison, alternate
from benchmarks.bench.training import LEARNING_RATE, changed, samples_per_second, train
from torchx_recsys.apps.calibrate.steps import MEMORY_BATCHES, batches_in_memory
from torchx_recsys.apps.datasets.movielens import TRAIN, write_data_set
from trainer.batches.batch import Batch
from trainer.config.root import READY_MADE, Config, load_config, to_toml
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.errors import InputError, nearest
from trainer.core.run_directory import RunDirectory
from trainer.models.builder import MODELS, build_model_with_loss
from trainer.models.tasks import ModelWithLoss
from trainer.training.session import Session
from trainer.training.setup import open_session

BASELINE = "a bare torch loop"
TARGET = 0.9
READY_MADE_DATA = "data/movielens"
FILMS, USERS, GENRES, OCCUPATIONS = 1682, 943, 19, 21  # sizes of MovieLens-100k
SECONDS_BETWEEN = 60  # seconds between two ratings


def movielens_config(name: str, data: str) -> Config:
    """Returns the ready-made configuration of a built-in model on MovieLens, for a data set in `data`.

    A model without its own configuration takes `movielens`.

    Args:
        name: Name of the model.
        data: Directory of the data set.

    Raises:
        InputError: There is no such model.
    """
    if name not in MODELS:
        raise InputError(f"--models has '{name}', which is no built-in model{nearest(name, MODELS)}")
    own = f"movielens_{name}"
    has_own = (READY_MADE / f"{own}.toml").exists()
    config = load_config(own) if has_own else changed(load_config("movielens"), {"model.name": name})
    return Config.model_validate(tomllib.loads(to_toml(config).replace(READY_MADE_DATA, data)))


def compare_models(
    models: Sequence[str],
    scratch: RunDirectory,
    global_batch_size: int,
    steps: int,
    repeats: int,
    context: DistributedContext,
) -> list[Comparison]:
    """Compares each model in the trainer with the model in a bare loop, in turn. Holds one model at a time in memory.

    Args:
        models: Names of built-in models.
        scratch: The folder of data and run directories.
        global_batch_size: Samples per step, over all ranks.
        steps: Steps per repeat.
        repeats: Repeats of each loop.
        context: This process among the ranks.

    Raises:
        InputError: There is no such model.
    """
    data = scratch.url_of("ratings")
    changes: dict[str, Any] = {"data.global_batch_size": global_batch_size, "data.validation": [], "data.test": []}
    changes["checkpoint.keep.best"] = None  # needs data.validation
    changes["optimizer"] = {}  # Adagrad, as in the bare loop; `bench features` measures what other options cost
    configs = {name: changed(movielens_config(name, data), changes) for name in models}
    ratings = math.ceil(MEMORY_BATCHES * global_batch_size / TRAIN)
    broadcast_from_rank0(context, lambda: make_ratings(data, ratings))
    comparisons = []
    for name, config in tqdm(configs.items(), "models", unit="model", disable=not context.is_rank0):
        with open_session(config, scratch.url_of(name), "never", context) as session:
            comparisons.append(_compare(name, session, steps, repeats))
    return comparisons


def _compare(name: str, session: Session, steps: int, repeats: int) -> Comparison:
    batches = [batch.to(session.context.device) for batch in batches_in_memory(session)]
    model = _unsharded(session)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=LEARNING_RATE)
    measured, compared = alternate(
        repeats,
        lambda: train(session, itertools.cycle(batches), steps),
        lambda: samples_per_second(session, partial(_step, model, optimizer, itertools.cycle(batches)), steps),
    )
    return Comparison(name, BASELINE, "samples/s", TARGET, measured, compared)


def _unsharded(session: Session) -> ModelWithLoss:
    """Returns the model of a session with whole tables in torch's own modules."""
    device = session.context.device
    model = build_model_with_loss(session.config, device, None, session.order.lanes.samples_per_step)
    for module in model.modules():
        if isinstance(module, nn.EmbeddingBag | nn.Embedding):
            module.to_empty(device=device)
            module.reset_parameters()
    return model


def _step(model: ModelWithLoss, optimizer: torch.optim.Optimizer, batches: Iterator[Batch], step: int) -> None:
    optimizer.zero_grad()
    loss, _ = model(next(batches))
    loss.backward()
    optimizer.step()


def make_ratings(out: str, ratings: int, seed: int = 0) -> None:
    """Writes random ratings in the form of MovieLens, for the ready-made configurations.

    Some films are more popular than others.

    Args:
        out: Directory to write to, on any fsspec URL.
        ratings: Ratings of all splits together.
        seed: Seed of the ratings.
    """
    random = np.random.default_rng(seed)
    rated_film = np.minimum(random.zipf(1.3, ratings), FILMS)  # skewed as in real data, whose ids share rows in caches
    quality = random.integers(1, 6, FILMS + 1)
    rated = {
        "user_id": random.integers(1, USERS + 1, ratings),
        "item_id": rated_film,
        "rating": np.where(random.random(ratings) < 0.7, quality[rated_film], random.integers(1, 6, ratings)),
        "timestamp": 880_000_000 + SECONDS_BETWEEN * np.arange(ratings),
    }
    genres = [" ".join(sorted({f"genre{one:02}" for one in row})) for row in random.integers(0, GENRES, (FILMS, 2))]
    films = {
        "item_id": np.arange(1, FILMS + 1),
        "movie_title": [f"film {number}" for number in range(1, FILMS + 1)],
        "release_year": random.integers(1930, 1999, FILMS),
        "class": genres,
    }
    users = {
        "user_id": np.arange(1, USERS + 1),
        "age": random.integers(7, 74, USERS),
        "gender": random.choice(["F", "M"], USERS),
        "occupation": random.integers(0, OCCUPATIONS, USERS),
        "zip_code": random.integers(10_000, 99_999, USERS),
    }
    tables = (
        {name: np.asarray(column).astype(str) for name, column in table.items()} for table in (rated, films, users)
    )
    write_data_set(out, *tables)
