"""Metrics over all items, against sorting them for every query."""

from math import log2

import numpy as np
import pytest
import torch
from evaluated import outputs

from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.metrics import retrieval
from trainer.metrics.evaluation import Metrics
from trainer.metrics.retrieval import ItemVectors

IDS = [2, 3, 5, 8, 13, 21, 34]
NAMES = ["recall@1", "recall@3", "hit_rate@3", "recall@100", "ndcg@1", "ndcg@3", "mrr"]
CPU = torch.device("cpu")


def metrics(vectors):
    data = {"groups": ["item"], "catalogue": {"items": ["items.parquet"], "id": "item"}}
    model = {"name": "own:model", "item_features": ["item"]}
    task = {"label": "label", "loss": "in_batch_softmax", "metrics": NAMES}
    tree = {"data": data | {"sparse": {"item": {"rows": 99}}}, "model": model, "tasks": {"one": task}}
    return Metrics(Config.model_validate(tree), CPU, {"one": ItemVectors(torch.tensor(IDS), vectors)})


def samples(random, count, vectors):
    """Returns queries, the item of each, labels and weights; some items are in no catalogue."""
    items = random.choice([*IDS, 4, 99], count)
    place = np.searchsorted(IDS, items) % len(IDS)
    pairs = torch.stack([torch.tensor(random.integers(-2, 3, (count, 4))).float(), vectors[place]], dim=1)
    labels = torch.tensor(random.choice([0.0, 0.3, 1.0], count)).float()
    weights = torch.tensor(random.choice([0.0, 0.5, 2.0], count)).float()
    return pairs, torch.tensor(items), labels, weights


def by_hand(vectors, pairs, items, labels, weights):
    """Returns the metrics by averaging over the places that an item takes in the orders of its tie."""
    found, whole = dict.fromkeys(NAMES, 0.0), 0.0
    for pair, item, label, weight in zip(pairs, items.tolist(), labels, weights.tolist(), strict=True):
        if label > 0 and weight > 0:
            whole += weight
            if item in IDS:
                scores = (vectors.double() @ pair[0].double()).tolist()
                own = scores[IDS.index(item)]
                above, ties = sum(score > own for score in scores), sum(score == own for score in scores)
                ranks = range(above + 1, above + ties + 1)
                for name in NAMES:
                    k = int(name.partition("@")[2] or 0)
                    gain = {"mrr": lambda rank: 1 / rank, "ndcg": lambda rank: 1 / log2(1 + rank)}
                    gained = [
                        gain.get(name.partition("@")[0], bool)(rank) if rank <= (k or rank) else 0 for rank in ranks
                    ]
                    found[name] += weight * np.mean(gained)
    return {name: value / whole for name, value in found.items()}


@pytest.mark.parametrize("block", [1, 50, 1 << 22])
def test_ranks_are_those_of_sorting_all_items(monkeypatch, block):
    """With many equal scores, in blocks of items of any size."""
    monkeypatch.setattr(retrieval, "BLOCK", block)
    random = np.random.default_rng(0)
    vectors = torch.tensor(random.integers(-1, 2, (len(IDS), 4))).float()
    vectors[3] = vectors[1]
    parts = [samples(random, count, vectors) for count in (50, 1, 30)]
    accumulated = metrics(vectors)
    for pairs, items, labels, weights in parts:
        accumulated.update(outputs({"one": pairs}, labels[:, None], weights, items[:, None]))
    with process_group() as context:
        found = accumulated.compute(context)
    assert found.pop("samples") == sum((part[3] > 0).sum().item() for part in parts)
    whole = [torch.cat(columns) for columns in zip(*parts, strict=True)]
    assert found == pytest.approx(by_hand(vectors, *whole), rel=1e-12)


def test_vectors_that_are_not_finite_find_nothing():
    vectors = torch.full((len(IDS), 4), torch.nan)
    accumulated = metrics(vectors)
    pairs = torch.ones(5, 2, 4)
    accumulated.update(outputs({"one": pairs}, torch.ones(5, 1), torch.ones(5), torch.full((5, 1), 8)))
    with process_group() as context:
        found = accumulated.compute(context)
    assert (found["recall@3"], found["mrr"]) == (0, pytest.approx(1 / len(IDS)))


def test_without_a_relevant_sample_nothing_is_defined():
    accumulated = metrics(torch.ones(len(IDS), 4))
    accumulated.update(outputs({"one": torch.ones(5, 2, 4)}, torch.zeros(5, 1), torch.ones(5), torch.ones(5, 1).long()))
    with process_group() as context:
        assert np.isnan(accumulated.compute(context)["mrr"])
