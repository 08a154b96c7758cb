"""Metrics over all items, against sorting them for every query."""

from math import log2

import numpy as np
import pytest
import torch
from evaluated import outputs
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.metrics import retrieval
from trainer.metrics.evaluation import Metrics
from trainer.metrics.retrieval import ItemVectors
from trainer.metrics.seen_items import SeenItems

IDS = [2, 3, 5, 8, 13, 21, 34]
NAMES = ["recall@1", "recall@3", "hit_rate@3", "recall@100", "ndcg@1", "ndcg@3", "mrr"]
CPU = torch.device("cpu")


def metrics(vectors, seen=None):
    data = {"groups": ["item"], "catalogue": {"items": ["items.parquet"], "id": "item"}}
    model = {"name": "own:model", "item_features": ["item"]}
    task = {"label": "label", "loss": "in_batch_softmax", "metrics": NAMES}
    tree = {"data": data | {"sparse": {"item": {"rows": 99}}}, "model": model, "tasks": {"one": task}}
    return Metrics(Config.model_validate(tree), CPU, {"one": ItemVectors(torch.tensor(IDS), vectors, seen)})


def samples(random, count, vectors, queries=1):
    """Returns vectors of queries and items, the items, labels and weights; some items are in no catalogue."""
    items = random.choice([*IDS, 4, 99], count)
    place = np.searchsorted(IDS, items) % len(IDS)
    drawn = torch.tensor(random.integers(-2, 3, (count, queries, 4))).float()
    pairs = torch.cat([drawn, vectors[place][:, None]], dim=1)
    labels = torch.tensor(random.choice([0.0, 0.3, 1.0], count)).float()
    weights = torch.tensor(random.choice([0.0, 0.5, 2.0], count)).float()
    return pairs, torch.tensor(items), labels, weights


def by_hand(vectors, pairs, items, labels, weights, had=None):
    """Returns the metrics by averaging over the places that an item takes in the orders of its tie."""
    found, whole = dict.fromkeys(NAMES, 0.0), 0.0
    had = had or [[]] * len(items)
    for pair, item, label, weight, seen in zip(pairs, items.tolist(), labels, weights.tolist(), had, strict=True):
        if label > 0 and weight > 0:
            whole += weight
            if item in IDS:
                scores = (vectors.double() @ pair[:-1].double().T).max(dim=1).values.tolist()
                own = scores[IDS.index(item)]
                scores = [score for one, score in zip(IDS, scores, strict=True) if one == item or one not in seen]
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


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("block", [1, 50, 1 << 22])
def test_ranks_are_those_of_sorting_all_items(monkeypatch, block, queries):
    """With many equal scores, in blocks of items of any size, by the closest of several vectors of a query."""
    monkeypatch.setattr(retrieval, "BLOCK", block)
    random = np.random.default_rng(0)
    vectors = torch.tensor(random.integers(-1, 2, (len(IDS), 4))).float()
    vectors[3] = vectors[1]
    parts = [samples(random, count, vectors, queries) for count in (50, 1, 30)]
    accumulated = metrics(vectors)
    for pairs, items, labels, weights in parts:
        accumulated.update(outputs({"one": pairs}, labels[:, None], weights, items[:, None]))
    with process_group() as context:
        found = accumulated.compute(context)
    assert found.pop("samples") == sum((part[3] > 0).sum().item() for part in parts)
    whole = [torch.cat(columns) for columns in zip(*parts, strict=True)]
    assert found == pytest.approx(by_hand(vectors, *whole), rel=1e-12)


@pytest.mark.parametrize("block", [1, 1 << 22])
def test_items_that_a_query_has_had_are_left_out(monkeypatch, block):
    """Of two features, one with an offset; ids that the catalogue lacks, and the sample's own item, change nothing."""
    monkeypatch.setattr(retrieval, "BLOCK", block)
    random = np.random.default_rng(1)
    vectors = torch.tensor(random.integers(-1, 2, (len(IDS), 4))).float()
    pairs, items, labels, weights = samples(random, 60, vectors)
    lists = [[random.choice([*IDS, 4, 99], random.integers(0, 5)) for _ in items] for _ in range(2)]
    rows = [row + offset for kind, offset in zip(lists, (0, 3), strict=True) for row in kind]
    lengths = torch.tensor([len(row) for row in rows])
    sparse = KeyedJaggedTensor(["first", "second"], torch.tensor(np.concatenate(rows)).int(), lengths=lengths.int())
    features = {"first": {"rows": 100}, "second": {"rows": 103, "offset": 3}}
    catalogue = {"items": ["items.parquet"], "id": "item", "exclude": [*features]}
    data = DataConfig.model_validate({"groups": ["item"], "catalogue": catalogue, "sparse": features})
    accumulated = metrics(vectors, SeenItems(np.array(IDS), data, CPU))
    accumulated.update(outputs({"one": pairs}, labels[:, None], weights, items[:, None])._replace(sparse=sparse))
    with process_group() as context:
        found = accumulated.compute(context)
    had = [[*one, *other] for one, other in zip(*lists, strict=True)]
    found.pop("samples")
    assert found == pytest.approx(by_hand(vectors, pairs, items, labels, weights, had), rel=1e-12)
    assert found != pytest.approx(by_hand(vectors, pairs, items, labels, weights), rel=1e-3)


def test_items_that_share_a_row_are_left_out_together():
    data = {"sparse": {"had": {"rows": 4, "ids": "modulo"}}, "groups": ["item"]}
    data["catalogue"] = {"items": ["items.parquet"], "id": "item", "exclude": ["had"]}
    seen = SeenItems(np.array(IDS), DataConfig.model_validate(data), CPU)
    sparse = KeyedJaggedTensor(["had"], torch.tensor([1, 2]).int(), lengths=torch.tensor([0, 2]).int())
    assert seen.of(sparse).tolist() == [[1, 2], [1, 4], [1, 5], [1, 0], [1, 6]]


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
