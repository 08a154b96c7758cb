"""Baselines that find items: each against plain NumPy in float64, and metrics against those of vectors."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scipy import sparse

from torchx_recsys.apps.baselines import retrieval
from torchx_recsys.apps.baselines.baselines import baselines
from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.metrics.base import Samples
from trainer.metrics.retrieval import ItemRanks, ItemVectors, mrr, ndcg, recall

USERS, ITEMS, LONGEST = 25, 20, 6
METRICS = ["hit_rate@3", "ndcg@5", "mrr"]
IDS = np.arange(ITEMS) * 3 + 100  # in the catalogue, in another order than their rows there


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Each user's items in an order: the last one is of test, the one before of validation, some have label 0."""
    folder, random = tmp_path_factory.mktemp("items"), np.random.default_rng(3)
    parts = {split: [] for split in ("train", "validation", "test")}
    for user in range(USERS):
        items = (random.integers(0, ITEMS) + np.arange(10) * random.integers(1, 3)) % ITEMS
        items[random.random(10) < 0.2] = random.integers(0, ITEMS)
        for place in range(1, 10):
            split = {9: "test", 8: "validation"}.get(place, "train")
            liked = 1.0 if split != "train" or random.random() < 0.8 else 0.0
            before = IDS[items[max(0, place - LONGEST) : place]].tolist()
            parts[split].append({"user": user, "item": IDS[items[place]], "before": before, "liked": liked})
    parts["test"].append({"user": 99, "item": 199, "before": [], "liked": 1.0})  # unknown user and item
    for split, rows in parts.items():
        table = pa.Table.from_pylist(rows)
        pq.write_table(table.set_column(3, "liked", table["liked"].cast(pa.float32())), folder / f"{split}.parquet")
    pq.write_table(pa.table({"item": IDS[::-1]}), folder / "items.parquet")
    return folder


def settings(folder, history=True, exclude=(), **task):
    before = {"before": {"rows": 200, "table": "item"}} if history else {}
    return Config.model_validate(
        {
            "data": {
                **{split: [str(folder / f"{split}.parquet")] for split in ("train", "validation", "test")},
                "sparse": {"user": {"rows": 100}, "item": {"rows": 200}, **before},
                "labels": ["liked"],
                "groups": ["item"],
                "catalogue": {"items": [str(folder / "items.parquet")], "id": "item", "exclude": [*exclude]},
            },
            "model": {"name": "two_tower", "item_features": ["item"]},
            "tasks": {"liked": {"loss": "in_batch_softmax", "group": "item", "metrics": METRICS, **task}},
        }
    )


@pytest.fixture(scope="module")
def found(folder):
    """The baselines of rows with a history, and of rows with a user alone."""
    return {
        name: baselines(settings(folder, name == "history"), to=str(folder / f"{name}.json"))
        for name in ("history", "user")
    }


def parts(folder, split):
    rows = pq.read_table(folder / f"{split}.parquet").to_pylist()
    for row in rows:
        row["item"], row["before"] = place_of(row["item"]), [place_of(item) for item in row["before"]]
    return rows


def place_of(item):
    return int(np.searchsorted(IDS, item)) if item in IDS else -1


def measured(scores, rows):
    """The metrics by hand: an item's rank is the mean over all orders of equal scores."""
    hits, gains, reciprocals = [], [], []
    for score, row in zip(np.asarray(scores, np.float32), rows, strict=True):
        ranks = []
        if row["item"] >= 0:
            above, ties = (score > score[row["item"]]).sum(), (score == score[row["item"]]).sum()
            ranks = np.arange(above + 1, above + ties + 1)
        hits.append(np.mean([rank <= 3 for rank in ranks]) if len(ranks) else 0)
        gains.append(np.mean([1 / np.log2(1 + rank) if rank <= 5 else 0 for rank in ranks]) if len(ranks) else 0)
        reciprocals.append(np.mean([1 / rank for rank in ranks]) if len(ranks) else 0)
    return dict(zip(METRICS, map(np.mean, (hits, gains, reciprocals)), strict=True))


def check(tree, name, scores, rows, split="test"):
    of = {metric: values[name] for metric, values in tree[split]["liked"].items()}
    assert of == pytest.approx(measured(scores, rows), abs=1e-6)


def chosen(tree, name):
    return tree["about"]["baselines"]["liked"][name]["chosen"]


@pytest.mark.parametrize("kind", ["history", "user"])
def test_popularity(found, folder, kind):
    train, test = parts(folder, "train"), parts(folder, "test")
    counts = np.bincount([row["item"] for row in train if row["liked"]], minlength=ITEMS)
    check(found[kind], "popularity", np.tile(counts, (len(test), 1)), test)


def matrix_of(folder):
    had = np.zeros((100, ITEMS))
    for row in parts(folder, "train"):
        if row["liked"]:
            had[row["user"], row["item"]] = 1
    return had


def test_neighbours_of_a_users_items(found, folder):
    had, test = matrix_of(folder), parts(folder, "test")
    most = int(chosen(found["user"], "item-kNN").split()[0])
    assert most >= ITEMS  # so that all neighbours count
    scores = np.zeros((len(test), ITEMS))
    for place, row in enumerate(test):
        for item in np.flatnonzero(had[row["user"]]):
            for other in range(ITEMS):
                length = np.sqrt(had[:, item].sum() * had[:, other].sum())
                scores[place, other] += (had[:, item] @ had[:, other] / length) if other != item and length else 0
    check(found["user"], "item-kNN", scores, test)


def test_only_the_nearest_neighbours_are_kept():
    matrix = sparse.csr_matrix(np.array([[0.0, 3, 1, 2], [5, 0, 5, 1], [0, 0, 0, 0], [1, 0, 0, 0]]))
    kept = retrieval.most_of_each_row(matrix, 2).toarray()
    assert kept.tolist() == [[0, 3, 0, 2], [5, 0, 5, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_ease_is_the_best_linear_model_without_an_item_itself(found, folder):
    """Column by column: ridge regression of an item from all others."""
    had, test = matrix_of(folder), parts(folder, "test")
    penalty, occur = float(chosen(found["user"], "EASE").split()[1]), np.flatnonzero(matrix_of(folder).sum(0))
    x, weights = had[:, occur], np.zeros((len(occur), len(occur)))
    for item in range(len(occur)):
        others = np.delete(np.arange(len(occur)), item)
        left = x[:, others].T @ x[:, others] + penalty * np.eye(len(others))
        weights[others, item] = np.linalg.solve(left, x[:, others].T @ x[:, item])
    assert retrieval.ease_weights(x.T @ x, penalty) == pytest.approx(weights, abs=1e-9)
    scores = np.full((len(test), ITEMS), -np.inf)
    scores[:, occur] = had[[row["user"] for row in test]][:, occur] @ weights
    check(found["user"], "EASE", scores, test)


def test_decayed_co_occurrence(found, folder):
    words = chosen(found["history"], "decayed co-occurrence").split()
    of_pairs, of_query, power = float(words[1]), float(words[3].strip(",")), -float(words[6].strip(";"))
    train, test = parts(folder, "train"), parts(folder, "test")
    counts = np.zeros((ITEMS, ITEMS))
    for row in train:
        for distance, item in enumerate(reversed(row["before"])):
            if row["liked"] and item != row["item"]:
                counts[item, row["item"]] += of_pairs**distance
    often = np.bincount([row["item"] for row in train if row["liked"]], minlength=ITEMS).clip(1)
    scores = np.zeros((len(test), ITEMS))
    for place, row in enumerate(test):
        for distance, item in enumerate(reversed(row["before"])):
            scores[place] += of_query**distance * counts[item] / often**power
    check(found["history"], "decayed co-occurrence", scores, test)


def test_neighbours_of_a_history_need_no_user(found, folder):
    train, test = parts(folder, "train"), parts(folder, "test")
    together = np.zeros((ITEMS, ITEMS))
    for row in train:
        for item in row["before"]:
            if row["liked"] and item != row["item"]:
                together[item, row["item"]] += 1
                together[row["item"], item] += 1
    occur = np.bincount([row["item"] for row in train if row["liked"]], minlength=ITEMS)
    occur = occur + np.bincount([row["before"][0] for row in train if len(row["before"]) == 1], minlength=ITEMS)
    length = np.sqrt(occur.clip(1))
    cosine = together / length[:, None] / length
    scores = [sum((cosine[item] for item in {*row["before"]}), np.zeros(ITEMS)) for row in test]
    assert int(chosen(found["history"], "item-kNN").split()[0]) >= ITEMS
    check(found["history"], "item-kNN", scores, test)


def test_items_that_a_query_has_had_are_left_out(folder):
    """All but its own item, which stays in."""
    tree = baselines(settings(folder, exclude=["before"]), to=str(folder / "left_out.json"), only=("popularity",))
    train, test = parts(folder, "train"), parts(folder, "test")
    counts = np.bincount([row["item"] for row in train if row["liked"]], minlength=ITEMS)
    scores = np.tile(counts, (len(test), 1)).astype(float)
    for place, row in enumerate(test):
        scores[place, [item for item in row["before"] if item != row["item"]]] = -1
    check(tree, "popularity", scores, test)


def test_metrics_are_those_of_a_model_whose_vectors_score_the_same(found, folder):
    """Popularity as vectors: a query of one number, and items with their counts."""
    train, test = parts(folder, "train"), parts(folder, "test")
    counts = np.bincount([row["item"] for row in train if row["liked"]], minlength=ITEMS)
    queries = torch.ones(len(test), 2, 1)
    with process_group() as context:
        ranks = ItemRanks(context.device, ItemVectors(torch.from_numpy(IDS), torch.from_numpy(counts[:, None]).float()))
        items = torch.tensor([IDS[row["item"]] if row["item"] >= 0 else 199 for row in test])
        ones = torch.ones(len(test), dtype=torch.float64)
        ranks.add(Samples(queries.double(), ones, ones, queries, None, items))
        total = ranks.total(context)
    expected = {"hit_rate@3": recall(total, 3), "ndcg@5": ndcg(total, 5), "mrr": mrr(total)}
    for metric, value in expected.items():
        assert found["user"]["test"]["liked"][metric]["popularity"] == pytest.approx(value[""], rel=1e-9)


def test_what_is_left_out_is_said(found, folder, monkeypatch, capsys):
    assert "no feature has the items" in found["user"]["about"]["left_out"]["liked"]["decayed co-occurrence"]
    monkeypatch.setattr(retrieval, "EASE_ITEMS", 5)
    tree = baselines(settings(folder), to=str(folder / "few.json"), only=("EASE",))
    assert (
        "items occur in data.train, more than 5, whose matrix would take" in tree["about"]["left_out"]["liked"]["EASE"]
    )
    tree = baselines(settings(folder, metrics=[]), to=str(folder / "none.json"))
    assert tree["about"]["left_out"]["liked"]["all"].startswith(
        "tasks.liked has no metric over all items; name some in"
    )
    assert "liked: no baselines: tasks.liked has no metric" in capsys.readouterr().out
