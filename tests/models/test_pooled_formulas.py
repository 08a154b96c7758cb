"""The formulas of the built-in models, against NumPy in float64 over the models' own weights."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.root import Config
from trainer.core.registry import find_by_name
from trainer.models.base import ModelInputs
from trainer.models.builder import MODELS
from trainer.models.embeddings import table_configs
from trainer.models.pooled import PooledModel

ROWS, DIMENSION, FEATURES = 5, 4, ["s0", "s1", "s2"]
WIDTH = 2 + DIMENSION * len(FEATURES)
LABELS = ["click", "keep.it", "type"]  # the last two are no names of modules


def inputs(name, dense=2, predictions=LABELS, **model):
    """Returns the inputs of a model of three features, the last two of which share a table."""
    config = Config.model_validate(
        {
            "data": {
                "labels": list(predictions),
                "dense": {f"d{i}": {} for i in range(dense)},
                "sparse": {"s0": {"rows": 9}, "s1": {"rows": 7, "table": "t"}, "s2": {"rows": 7, "table": "t"}},
            },
            "model": {"name": name, "embedding_dim": DIMENSION} | model,
        }
        | (
            {"tasks": {name: {"label": name, "output": "log_probability"} for name in predictions}}
            if name == "esmm"
            else {}
        )
    )
    tables = EmbeddingBagCollection(tables=table_configs(config.data, config.model))
    return ModelInputs(tables, dense, FEATURES, predictions, torch.device("cpu"), config.model)


def network(name, **model):
    """Returns the network of a model and its weights in float64."""
    torch.manual_seed(0)
    built = find_by_name("model.name", name, MODELS)(inputs(name, **model)).network.double()
    return built, {key: value.numpy() for key, value in built.state_dict().items()}


def vectors(dense=2):
    return np.random.default_rng(1).standard_normal((ROWS, dense + DIMENSION * len(FEATURES)))


def predicted(built, x):
    with torch.no_grad():
        found = built(torch.from_numpy(x))
    return {name: value.numpy() for name, value in found.items()} if isinstance(found, dict) else found.numpy()


def layers(weights, prefix, x, last_is_linear=False):
    """Applies the layers under a name: ReLU after each, but for the last one of a tower."""
    count = sum(key.startswith(f"{prefix}._mlp.") and key.endswith("weight") for key in weights)
    for at in range(count):
        x = x @ weights[f"{prefix}._mlp.{at}._linear.weight"].T + weights[f"{prefix}._mlp.{at}._linear.bias"]
        x = x if last_is_linear and at == count - 1 else np.maximum(x, 0)
    return x


def mixed(weights, gate, x, experts):
    scores = np.exp(x @ weights[f"{gate}.scores.weight"].T)
    return sum(scores[:, [at]] / scores.sum(axis=1, keepdims=True) * expert for at, expert in enumerate(experts))


def experts(weights, prefix, x, count):
    return [layers(weights, f"{prefix}.networks.{at}", x) for at in range(count)]


def towers(weights, each):
    names = ["click", "keep%2Eit", "%type"]
    return np.hstack([layers(weights, f"towers.towers.{name}", x, True) for name, x in zip(names, each, strict=True)])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_the_vector_holds_dense_features_and_pooled_embeddings_in_order():
    given = inputs("wide_deep", predictions=["label"])
    sparse = KeyedJaggedTensor(
        keys=["s2", "s0", "s1"], values=torch.tensor([1, 2, 6, 3, 4, 5, 0]), lengths=torch.tensor([2, 0, 1, 2, 1, 1])
    )
    dense = torch.tensor([[0.5, -1.0], [2.0, 3.0]])
    with torch.no_grad():
        found = PooledModel(given, nn.Identity())(dense, sparse)
    first, shared = (given.tables.embedding_bags[name].weight.detach() for name in ("s0", "t"))
    expected = [
        torch.cat([dense[0], first[6], shared[5], shared[1] + shared[2]]),
        torch.cat([dense[1], first[3] + first[4], shared[0], torch.zeros(DIMENSION)]),
    ]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("dense", [2, 0])
def test_wide_and_deep_adds_a_linear_and_a_deep_part(dense):
    built, weights = network("wide_deep", dense=dense, over_layers=[6, 3])
    x = vectors(dense)
    expected = x @ weights["wide.weight"].T + weights["wide.bias"] + layers(weights, "deep", x, True)
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("gelu", lambda x: x * (1 + np.vectorize(math.erf)(x / 2**0.5)) / 2),
        ("silu", lambda x: x * sigmoid(x)),
        ("leaky_relu", lambda x: np.where(x > 0, x, x / 100)),
    ],
)
def test_hidden_layers_have_another_activation_by_key(name, function):
    built, weights = network("wide_deep", over_layers=[6, 3], activation=name)
    h = x = vectors()
    for at in range(3):
        h = h @ weights[f"deep._mlp.{at}._linear.weight"].T + weights[f"deep._mlp.{at}._linear.bias"]
        h = h if at == 2 else function(h)
    expected = x @ weights["wide.weight"].T + weights["wide.bias"] + h
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-12)


@pytest.mark.parametrize("dense", [2, 0])
def test_deepfm_adds_the_inner_products_of_all_pairs(dense):
    built, weights = network("deepfm", dense=dense, over_layers=[6])
    x = vectors(dense)
    factors = [x[:, dense + at * DIMENSION :][:, :DIMENSION] for at in range(len(FEATURES))]
    factors += [x[:, [at]] * weights["second.dense_factors.weight"][:, at] for at in range(dense)]
    pairs = sum((one * other).sum(axis=1, keepdims=True) for one, other in itertools.combinations(factors, 2))
    wide = x @ weights["wide_and_deep.wide.weight"].T + weights["wide_and_deep.wide.bias"]
    expected = wide + layers(weights, "wide_and_deep.deep", x, True) + pairs
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-12)


@pytest.mark.parametrize("tower_layers", [[3], []])
def test_mmoe_mixes_shared_experts_by_a_gate_for_each_task(tower_layers):
    built, weights = network("mmoe", tower_layers=tower_layers, experts={"shared": 3, "layers": [6, 5]})
    x = vectors()
    shared = experts(weights, "experts", x, 3)
    expected = towers(weights, [mixed(weights, f"gates.{name}", x, shared) for name in built.gates])
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["wide_deep", "deepfm"])
@pytest.mark.parametrize("dense", [2, 0])
def test_the_linear_part_may_have_columns_of_its_own(name, dense):
    built, weights = network(name, dense=dense, over_layers=[6], first_order_columns=1)
    x, deep = vectors(dense), "deep" if name == "wide_deep" else "wide_and_deep.deep"
    embeddings = x[:, dense:].reshape(ROWS, len(FEATURES), DIMENSION)
    first = np.hstack([x[:, :dense], embeddings[:, :, 0]])
    rest = np.hstack([x[:, :dense], embeddings[:, :, 1:].reshape(ROWS, -1)])
    wide = deep.replace("deep", "wide") if name == "wide_deep" else "wide_and_deep.wide"
    expected = first @ weights[f"{wide}.weight"].T + weights[f"{wide}.bias"] + layers(weights, deep, rest, True)
    if name == "deepfm":
        factors = [*embeddings[:, :, 1:].swapaxes(0, 1)]
        factors += [x[:, [at]] * weights["second.dense_factors.weight"][:, at] for at in range(dense)]
        expected += sum((a * b).sum(axis=1, keepdims=True) for a, b in itertools.combinations(factors, 2))
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-12)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_ple_keeps_shared_experts_and_each_tasks_own_apart(levels):
    built, weights = network("ple", experts={"shared": 2, "per_task": 3, "levels": levels, "layers": [6, 5]})
    shared_x = x = vectors()
    each = dict.fromkeys(built.towers.towers, x)
    for level in range(levels):
        here = f"levels.{level}"
        shared = experts(weights, f"{here}.shared", shared_x, 2)
        own = {name: experts(weights, f"{here}.own.{name}", each[name], 3) for name in each}
        each = {name: mixed(weights, f"{here}.gates.{name}", each[name], own[name] + shared) for name in each}
        if level < levels - 1:
            shared_x = mixed(weights, f"{here}.shared_gate", shared_x, [*itertools.chain(*own.values()), *shared])
    np.testing.assert_allclose(predicted(built, x), towers(weights, each.values()), rtol=1e-12)
    assert f"levels.{levels - 1}.shared_gate.scores.weight" not in weights


@pytest.mark.parametrize("names", [["ctr", "ctcvr"], ["cvr", "ctcvr", "ctr"]])
def test_esmm_predicts_the_product_of_its_probabilities(names):
    built, weights = network("esmm", predictions=names, tower_layers=[6])
    x = vectors()
    ctr, cvr = (sigmoid(layers(weights, part, x, True))[:, 0] for part in ("click", "conversion"))
    expected = {"ctr": ctr, "cvr": cvr, "ctcvr": ctr * cvr}
    found = predicted(built, x)
    assert [*found] == names
    for name, value in found.items():
        np.testing.assert_allclose(np.exp(value), expected[name], rtol=1e-6)  # which it computes in float32


def test_dbmtl_lets_tasks_see_those_that_they_depend_on():
    dependencies = {"click": ["keep.it", "type"], "keep.it": ["type"]}
    built, weights = network(
        "dbmtl", over_layers=[6, 5], tower_layers=[4], relation_layers=[3, 2], dependencies=dependencies
    )
    x = vectors()
    shared = layers(weights, "shared", x)
    click, keep, kind = (layers(weights, f"towers.{name}", shared) for name in ("click", "keep%2Eit", "%type"))
    keep = layers(weights, "relations.keep%2Eit", np.hstack([keep, kind]))
    click = layers(weights, "relations.click", np.hstack([click, keep, kind]))
    heads = zip(("click", "keep%2Eit", "%type"), (click, keep, kind), strict=True)
    expected = [hidden @ weights[f"heads.{name}.weight"].T + weights[f"heads.{name}.bias"] for name, hidden in heads]
    np.testing.assert_allclose(predicted(built, x), np.hstack(expected), rtol=1e-12)
    assert "relations.%type._mlp.0._linear.weight" not in weights


def test_dbmtl_without_dependencies_is_a_shared_bottom():
    built, weights = network("dbmtl", over_layers=[6], tower_layers=[4], predictions=["click", "buy"])
    x = vectors()
    hidden = [layers(weights, f"towers.{name}", layers(weights, "shared", x)) for name in ("click", "buy")]
    expected = [
        one @ weights[f"heads.{name}.weight"].T + weights[f"heads.{name}.bias"]
        for name, one in zip(("click", "buy"), hidden, strict=True)
    ]
    np.testing.assert_allclose(predicted(built, x), np.hstack(expected), rtol=1e-12)
