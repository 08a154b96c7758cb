"""Films for each user of MovieLens-100k, as the recommenders project compares its models."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tables.data import movielens
from benchmarks.tables.published import Published, read_parts, train, write
from benchmarks.tables.scores import Scores, ranking
from benchmarks.tables.splits import others, stratified
from torchx_recsys.apps.baselines.retrieval import ease_weights
from trainer.commands import read_command

EASE_PENALTY = 600.0  # of 100, 300 and 600 the best with --choose


def prepare(packages: Path, folder: Path, to_choose: bool) -> Iterator[Path]:
    """Writes the table's split, 75 % of the ratings of each film to train on."""
    rows = movielens(packages, "ml-100k")
    user, item = rows["user_id"].to_numpy(), rows["item_id"].to_numpy()
    is_train = stratified(item, 0.75)
    if to_choose:
        user, item = user[is_train], item[is_train]
        is_train = stratified(item, 0.85, seed=0)
    write(folder, "test", pa.table({"user_id": user[~is_train], "item_id": item[~is_train]}))
    write_train(folder, user[is_train], item[is_train])
    yield folder


def write_train(folder: Path, user: np.ndarray, item: np.ndarray) -> None:
    """Writes rows of train, in which `films` are the user's others, a row for each user to ask with, and the items."""
    label = np.ones(len(user), np.float32)
    columns = {"label": label, "user_id": user, "item_id": item}
    write(folder, "train", pa.table(columns | others(user, {"films": item})))
    users = np.unique(user)
    write(folder, "users", pa.table({"user_id": users, **others(user, {"films": item}, users)}))
    write(folder, "items", pa.table({"item_id": np.unique(item)}))


def measure(folder: Path, config: Path, out: Path, flags: list[str]) -> Scores:
    """Trains, lists ten films for each user that they have not rated in train, and returns the scores of the lists."""
    files = ["--data.train", f"{folder}/train.parquet", "--data.catalogue.items", f"{folder}/items.parquet"]
    train(config, out, [*files, *flags])
    words = ["--source", f"{folder}/users.parquet", "--user-column", "user_id", "--to", f"{out}/lists"]
    read_command(["recommend", f"{out}/config.toml", "--out", str(out), *words])()
    found, test = read_parts(out / "lists"), pq.read_table(folder / "test.parquet").to_pydict()
    return ranking(_by_user(found["user"], found["item"]), _by_user(test["user_id"], test["item_id"]))


def baselines(folder: Path) -> dict[str, Scores]:
    """Returns the scores of EASE."""
    train, test = (pq.read_table(folder / f"{split}.parquet") for split in ("train", "test"))
    user, item = (train[name].to_numpy() for name in ("user_id", "item_id"))
    had = np.zeros((user.max() + 1, item.max() + 1))
    had[user, item] = 1
    scores = np.where(had > 0, -np.inf, had @ ease_weights(had.T @ had, EASE_PENALTY))
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    wanted = _by_user(test["user_id"].to_pylist(), test["item_id"].to_pylist())
    return {"EASE": ranking({one: best[one].tolist() for one in np.unique(user).tolist()}, wanted)}


def _by_user(users: list[int], items: list[int]) -> dict[int, list[int]]:
    """Returns the items of each user, in their order."""
    lists: dict[int, list[int]] = {}
    for user, item in zip(users, items, strict=True):
        lists.setdefault(user, []).append(item)
    return lists


TABLE = Published(
    source="the [recommenders](https://github.com/recommenders-team/recommenders#algorithms) project, MovieLens-100k",
    metrics=("nDCG@10", "MAP", "precision@10", "recall@10"),
    rows={
        "BiVAE": (0.475077, 0.146126, 0.411771, 0.219145),
        "BPR": (0.441997, 0.132478, 0.388229, 0.212522),
        "LightGCN": (0.419846, 0.088526, 0.379626, 0.144336),
        "NCF": (0.396118, 0.107720, 0.347296, 0.180775),
        "SAR": (0.382461, 0.110591, 0.330753, 0.176385),
        "FastAI, dot product": (0.117810, 0.018954, 0.104242, 0.042450),
        "SVD (Surprise)": (0.095930, 0.012873, 0.091198, 0.032783),
        "ALS (Spark)": (0.044239, 0.004732, 0.048462, 0.017796),
    },
    ours={"two_tower": "recommenders"},
    prepare=prepare,
    measure=measure,
    baselines=baselines,
)
