"""A whole first configuration for guessed data: model, task, optimizers, epochs, evaluations and checkpoints."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torchx_recsys.apps.check_data.guess import INPUTS, batch_size_for
from torchx_recsys.apps.check_data.label import Label, short
from trainer.core.errors import InputError
from trainer.core.section import Tree

LARGE = 100_000  # from this many rows in all tables on, the model's default sizes stay
PRIOR = 0.3  # L2 penalty of all weights times the samples: like a prior, it is outweighed by more of them
PASSES = ((100_000, 20), (1_000_000, 10), (10_000_000, 5))  # most epochs with less than so many rows; else 3
UNWATCHED = 1000  # steps without validation data, where nothing says when to stop
STEPS, MOST_PASSES = 3000, 200  # few rows make short epochs, of which training takes more, up to so many steps
EVALUATIONS = 4  # in an epoch
PATIENCE = 8  # two epochs: what only two ids together tell is learned late
LEAST_STEPS, MOST_STEPS = 20, 1000  # between two evaluations
METRICS = {
    "binary": "log_loss",
    "values": "rmse",
    "counts": "poisson_deviance",
    "classes": "cross_entropy",
    "items": "mrr",
}
WHY = {
    "data": "Batches are small enough for some hundred steps in an epoch.",
    "optimizer.ema": "Evaluations and exports take averages of the weights, over about twice evaluate.every_steps.",
    "train.stop_early": "Training ends when evaluations get no better, so that epochs are only the most.",
    "evaluate": "The test split is judged with the best checkpoint by validation.",
    "checkpoint": "A stopped run goes on from the last of these.",
}


def guess_config(
    data: Tree, label: Label, files: Mapping[str, Sequence[str]], reader: str, rows: Mapping[str, int]
) -> Tree:
    """Returns a whole configuration.

    Args:
        data: The result of `guess_data`.
        label: The label.
        files: The files of each split.
        reader: Their format.
        rows: Rows of each split.
    """
    if not data["dense"] and not data["sparse"]:
        raise InputError("--source has no column that could be a feature, beside the label; add one")
    batch = batch_size_for(rows["train"])
    head: Tree = {} if reader == "parquet" else {"reader": reader}
    head |= {name: [*urls] for name, urls in files.items()} | {"global_batch_size": batch}
    data = _renamed(data)
    course = _course(label, batch, rows, "validation" in files, "test" in files)
    if label.task == "items":
        model, optimizer = _two_towers(data), _optimizer()
    elif sum(feature["rows"] for feature in data["sparse"].values()) > LARGE:
        model, optimizer = {"name": "wide_deep"}, _optimizer()
    else:
        model = {"name": "wide_deep", "embedding_dim": 16, "over_layers": [64, 32]}
        optimizer = _regularized(rows["train"], course["checkpoint"]["every_steps"])
    if not data["sparse"]:
        _leave_tables_out(model, optimizer)
    return {"data": head | data, "model": model, **_tasks(label, data), "optimizer": optimizer, **course}


def _optimizer() -> Tree:
    return {
        "sparse": {"name": "rowwise_adagrad", "learning_rate": 0.05},
        "dense": {"name": "adam", "learning_rate": 1e-3},
    }


def _leave_tables_out(model: Tree, optimizer: Tree) -> None:
    """Removes what only embedding tables use."""
    for section, key in ((model, "embedding_dim"), (optimizer, "sparse"), (optimizer.get("ema", {}), "tables")):
        section.pop(key, None)


def _regularized(samples: int, every: int) -> Tree:
    """Returns the optimizers with L2, and averages over about twice the steps between two evaluations."""
    optimizer, penalty = _optimizer(), short(PRIOR / samples)
    optimizer["sparse"] |= {"weight_decay": penalty, "weight_decay_mode": "l2"}
    optimizer["dense"] |= {"weight_decay": penalty}
    return optimizer | {"ema": {"decay": short(1 - 0.5 / every), "tables": True}}


def _two_towers(data: Tree) -> Tree:
    """Returns two towers; `data.catalogue`'s columns are the item's."""
    columns = [data["catalogue"]["id"], *data.pop("columns of item")]
    features = {name: keys.get("column", name) for kind in ("dense", "sparse") for name, keys in data[kind].items()}
    of_item = [name for name, column in features.items() if column in columns]
    if len(of_item) in (0, len(features)):
        raise InputError(
            f"--label is always 1: items are to be found, but every feature is one of '{columns[0]}'; add columns of "
            "those that it is found for, such as user_id"
        )
    return {"name": "two_tower", "item_features": of_item, "embedding_dim": 32, "tower_layers": [64], "vector_dim": 32}


def _tasks(label: Label, data: Tree) -> Tree:
    task: dict[str, Any] = {}
    if label.task == "values":
        task = {"loss": "squared", "mean": label.mean, "std": label.std, "weight": float(f"{label.std**-2:.4g}")}
    elif label.task == "counts":
        mean = label.mean or 1.0
        task = {"loss": "poisson", "mean": short(math.log(mean)), "weight": short(1 / mean)}
    elif label.task == "classes":
        task = {"loss": "softmax"}
    elif label.task == "items":
        task = {"loss": "sampled_softmax", "across": "batch", "log_q": True, "temperature": 0.1}
        task |= {"group": data["catalogue"]["id"], "metrics": ["recall@10", "recall@50", "mrr"]}
    elif groups := data.get("groups"):
        task = {"group": groups[0], "metrics": ["auc", "log_loss", "calibration", "label_rate", "gauc"]}
    return {"tasks": {label.name: task}} if task else {}


def _course(label: Label, batch: int, rows: Mapping[str, int], validated: bool, tested: bool) -> Tree:
    """Returns how long training takes at most, and when it evaluates and saves."""
    steps = -(-rows["train"] // batch)
    if not validated:
        epochs = min(max(2, -(-UNWATCHED // steps)), MOST_PASSES)
        return {
            "train": {"epochs": epochs},
            "checkpoint": {"every_steps": min(max(1, steps // EVALUATIONS), MOST_STEPS)},
        }
    passes = next((most for less, most in PASSES if rows["train"] < less), 3)
    epochs = min(max(passes, -(-STEPS // steps)), MOST_PASSES)
    # An evaluation of a step costs a third of training on it, so that this is the least between two evaluations.
    every = max(LEAST_STEPS, min(steps // EVALUATIONS, MOST_STEPS), rows["validation"] // batch)
    metric = METRICS[label.task]
    return {
        "train": {"epochs": epochs, "stop_early": {"metric": metric, "patience": PATIENCE}},
        "evaluate": {"every_steps": every} | ({"final": "best"} if tested else {}),
        "checkpoint": {"every_steps": every, "keep": {"newest": 2, "best": metric}},
    }


def _renamed(data: Tree) -> Tree:
    """Renames features whose name equals an input of another feature, such as NAME.values, which exports refuse."""
    kinds = ("dense", "sparse")
    known = [name for kind in kinds for name in data[kind]]

    def renamed(name: str) -> str:
        feature, _, ending = name.rpartition(".")
        new = f"{feature}_{ending}"
        return new if ending in INPUTS and feature in known and new not in known else name

    named = {
        kind: {
            renamed(name): keys | ({"column": name} if renamed(name) != name else {})
            for name, keys in data[kind].items()
        }
        for kind in kinds
    }
    return data | named
