"""Metrics within groups against plain Python: all pairs, and all orders of tied samples."""

import itertools
import math

import numpy as np
import pytest
import torch
from evaluated import computed

from trainer.core.distributed import process_group
from trainer.metrics.base import Samples
from trainer.metrics.groups import GroupedSamples

K = (1, 3, 5)
RANKED = ["mrr", *(f"{name}@{k}" for name in ("ndcg", "recall", "hit_rate") for k in K)]
NAMES = ["gauc", "gauc_by_samples", *RANKED]


@pytest.fixture(scope="module")
def samples():
    """Groups of 1 to 6 samples, many with ties, some of one class, some samples of weight 0."""
    random = np.random.default_rng(3)
    groups = np.repeat(random.integers(-(2**63), 2**63 - 1, 150), random.integers(1, 7, 150))
    random.shuffle(groups)
    count = len(groups)
    return {
        "predictions": np.round(random.normal(size=count), 1).astype(np.float32),
        "labels": random.choice([0.0, 0.0, 1.0, 0.5], count),
        "weights": random.choice([0.0, 1.0, 1.0, 2.5], count),
        "groups": groups,
    }


def by_group(samples):
    """Yields prediction, label and weight of the samples of each group that weigh anything."""
    rows = list(zip(*(samples[name].tolist() for name in ("groups", "predictions", "labels", "weights")), strict=True))
    for group in set(samples["groups"].tolist()):
        if found := [row[1:] for row in rows if row[0] == group and row[3] > 0]:
            yield found


def auc(group):
    right = pairs = 0.0
    for (p, y, w), (q, z, v) in itertools.product(group, repeat=2):
        pair = w * y * v * (1 - z)
        right += pair * ((p > q) + (p == q) / 2)
        pairs += pair
    return right / pairs if pairs else None


def mean_over_orders(group, measure):
    """Returns the mean of a measure of labels by rank, over all orders in which predictions fall."""
    orders = [
        order for order in itertools.permutations(group) if all(a[0] >= b[0] for a, b in itertools.pairwise(order))
    ]
    return sum(measure([label for _, label, _ in order]) for order in orders) / len(orders)


def gain(labels, k):
    return sum(label / math.log2(rank + 1) for rank, label in enumerate(labels[:k], 1))


def ndcg(k):
    return lambda labels: gain(labels, k) / gain(sorted(labels, reverse=True), k)


def recall(k):
    return lambda labels: sum(label > 0 for label in labels[:k]) / sum(label > 0 for label in labels)


def hit_rate(k):
    return lambda labels: float(any(label > 0 for label in labels[:k]))


def mrr(labels):
    return 1 / next(rank for rank, label in enumerate(labels, 1) if label > 0)


def test_gauc(samples):
    aucs = [(auc(group), sum(weight for *_, weight in group)) for group in by_group(samples)]
    aucs = [(value, weight) for value, weight in aucs if value is not None]
    assert 50 < len(aucs) < 150
    found = computed(["gauc", "gauc_by_samples"], samples)
    assert found["gauc"] == pytest.approx(np.mean([value for value, _ in aucs]), rel=1e-12)
    assert found["gauc_by_samples"] == pytest.approx(
        np.average([value for value, _ in aucs], weights=[weight for _, weight in aucs]), rel=1e-12
    )


def test_rankings(samples):
    measures = {f"{name.__name__}@{k}": name(k) for name in (ndcg, recall, hit_rate) for k in K} | {"mrr": mrr}
    groups = [group for group in by_group(samples) if any(label > 0 for _, label, _ in group)]
    assert 50 < len(groups) < 150
    found = computed(RANKED, samples)
    for name, measure in measures.items():
        expected = np.mean([mean_over_orders(group, measure) for group in groups])
        assert found[name] == pytest.approx(expected, rel=1e-11), name


def constant(count, relevant):
    labels = (np.arange(count) < relevant).astype(float)
    return {"predictions": np.zeros(count), "labels": labels, "weights": np.ones(count), "groups": np.ones(count, int)}


def test_a_constant_ranks_as_chance_does():
    """The first of 3 relevant samples of 1000 in a random order is expected at rank 250.25; 1 of 1000 at any."""
    found = computed(["gauc", "recall@10", "mrr"], constant(1000, 1))
    harmonic = sum(1 / rank for rank in range(1, 1001)) / 1000
    assert found == pytest.approx({"gauc": 0.5, "recall@10": 0.01, "mrr": harmonic}, rel=1e-10)
    missed = math.comb(997, 10) / math.comb(1000, 10)
    assert computed(["hit_rate@10"], constant(1000, 3))["hit_rate@10"] == pytest.approx(1 - missed, rel=1e-10)


def test_labels_of_ndcg_may_be_graded():
    columns = constant(3, 0) | {"predictions": np.array([3.0, 2.0, 1.0]), "labels": np.array([1.0, -2.0, 4.0])}
    expected = (1 + 4 / 2) / (4 + 1 / math.log2(3))  # a label below 0 is no gain
    assert computed(["ndcg@3"], columns, output="value") == {"ndcg@3": pytest.approx(expected, rel=1e-12)}


def test_no_group_has_no_value(samples):
    for nothing in (samples | {"weights": 0 * samples["weights"]}, samples | {"labels": 0 * samples["labels"]}):
        assert all(math.isnan(value) for value in computed(NAMES, nothing).values())


def test_log_probabilities_rank_as_they_are():
    """Logits of such probabilities are equal in float32."""
    columns = constant(2, 1) | {"predictions": np.array([-1.0e-9, -1.0000001e-9], np.float32)}
    assert computed(["gauc"], columns, output="log_probability") == {"gauc": 1}


def test_a_sample_of_the_groups():
    """The groups that are chosen are whole, about as many as asked for, and among those of a larger sample."""
    groups, kept = torch.arange(4000).repeat(2), {}
    for fraction in (0.25, 0.5, 1.0):
        accumulated = GroupedSamples(torch.device("cpu"), fraction)
        accumulated.add(Samples(torch.ones(8000), groups, torch.ones(8000), torch.ones(8000), groups))
        with process_group() as context:
            ranked = accumulated.total(context)
        assert set(ranked.of_groups(ranked.size.double()).tolist()) == {2}
        kept[fraction] = set(ranked.labels.tolist())  # which are the groups themselves
    assert kept[1.0] > kept[0.5] > kept[0.25]
    assert 900 < len(kept[0.25]) < 1100


def test_samples_outside_of_a_task_do_not_count(samples):
    inside = samples["labels"] > 0
    only = {name: values[inside] for name, values in samples.items()}
    found = computed(["gauc", "log_loss"], samples, where={"column": "label"})
    assert found == pytest.approx(computed(["gauc", "log_loss"], only), rel=1e-14, nan_ok=True)
