"""The table of results in docs/explanation/results.md, and the baselines in it, against plain NumPy."""

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from benchmarks.baselines import PRIOR_RATINGS, LogisticRegression, auc, popularity, read_samples, recall_of_counts
from benchmarks.models import LABELS, MODELS, NEXT, RETRIEVAL, render
from trainer.config.data import DataConfig
from trainer.config.model import USED_BY
from trainer.config.root import READY_MADE, load_config

ROWS = 60
PAGE = Path(__file__).parents[1] / "docs/explanation/results.md"


@pytest.fixture
def ratings():
    """A dense feature with nulls, ids and lists of ids, and a label."""
    random = np.random.default_rng(0)
    lists = [list(random.integers(0, 4, random.integers(0, 3))) for _ in range(ROWS)]
    return pa.table(
        {
            "age": pa.array([None if row % 9 == 0 else float(row) for row in range(ROWS)]),
            "item": random.integers(0, 5, ROWS).astype(np.int32),
            "genres": pa.array(lists, pa.list_(pa.int32())),
            "label": random.integers(0, 2, ROWS).astype(np.float32),
        }
    )


def test_auc_counts_pairs():
    random = np.random.default_rng(0)
    scores, labels = random.integers(0, 9, 50), random.integers(0, 2, 50)
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    assert auc(scores, labels) == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean(), rel=1e-12)


def test_popularity_is_a_rate_between_that_of_the_item_and_the_mean(ratings):
    items, labels = (ratings[name].to_numpy() for name in ("item", "label"))
    found = popularity(items, labels, np.array([2, 9, 0]))
    of_two = (labels[items == 2].sum() + PRIOR_RATINGS * labels.mean()) / ((items == 2).sum() + PRIOR_RATINGS)
    assert found[0] == pytest.approx(of_two)
    assert found[1] == pytest.approx(labels.mean())


def test_recall_of_counts_gives_ties_their_share():
    counts = np.array([5, 9, 5, 1, 5])
    assert recall_of_counts(counts, np.array([1, 0, 2, 3]), 2) == pytest.approx((1 + 1 / 3 + 1 / 3 + 0) / 4)


def test_logistic_regression_is_at_its_minimum(ratings):
    """Where the gradient is zero, over features that are spread out by hand."""
    dense = {"age": {"transform": "log1p", "mean": 3.0, "std": 2.0, "missing": 7.0}}
    data = DataConfig.model_validate({"dense": dense, "sparse": {"item": {"rows": 5}, "genres": {"rows": 4}}})
    x = np.zeros((ROWS, 10))
    for row, values in enumerate(ratings.to_pylist()):
        x[row, 0] = (np.log1p(7.0 if values["age"] is None else values["age"]) - 3) / 2
        x[row, 1 + values["item"]] = 1
        for genre in values["genres"]:
            x[row, 6 + genre] += 1
    labels, samples = ratings["label"].to_numpy().astype(np.float64), read_samples(ratings, data)
    model = LogisticRegression(1, 9).fit(samples, torch.from_numpy(labels))
    weights = torch.cat([model.dense, model.ids]).detach().numpy()
    logits = x @ weights + model.bias.item()
    np.testing.assert_allclose(model(samples).detach().numpy(), logits, rtol=1e-12)
    errors = 1 / (1 + np.exp(-logits)) - labels
    np.testing.assert_allclose(x.T @ errors + weights, 0, atol=1e-4)
    assert errors.sum() == pytest.approx(0, abs=1e-4)


def test_every_built_in_model_and_every_configuration_is_measured():
    presets = {file.stem for file in READY_MADE.glob("movielens*.toml")} - {"movielens_segments"}  # another order
    measured = [*MODELS.values(), *RETRIEVAL.values(), *NEXT.values()]
    assert {words[0] for words in measured} == presets
    assert {load_config(words[0]).model.name for words in measured} | {"dlrm_dcn"} == USED_BY.keys()


@pytest.mark.parametrize(("name", "models"), [("models", MODELS), ("retrieval", RETRIEVAL), ("next", NEXT)])
def test_the_documented_results_are_of_all_models(name, models):
    part = PAGE.read_text().partition(f"<!-- measured: {name} -->")[2].partition("<!-- end -->")[0]
    assert re.findall(r"^\| `([\w ]+)` \|", part, re.MULTILINE) == [*models]


def test_the_table_shows_mean_and_spread():
    results = {"`dlrm`": {"label": [0.7, 0.71, 0.75]}, "popularity": {"loved": [0.6]}}
    lines = render(results, LABELS).splitlines()
    assert "| `dlrm` | 0.7200 (0.7000 to 0.7500) |  |" in lines
    assert "| popularity |  | 0.6000 |" in lines
