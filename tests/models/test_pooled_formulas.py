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
from trainer.models.dropout import Dropout
from trainer.models.embeddings import table_configs
from trainer.models.normalization import BatchNorm
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
    device, names = torch.device("cpu"), list(config.data.dense)
    return ModelInputs(tables, dense, FEATURES, predictions, device, config.model, dense_names=names)


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


def feature_vectors(weights, prefix, x, dimension=DIMENSION):
    """The vectors of the features, `[B, F, D]`: a value times a direction, or an embedding."""
    directions = weights.get(f"{prefix}.directions", np.zeros((0, dimension)))
    dense, embeddings = np.split(x, [len(directions)], axis=1)
    return np.concatenate([dense[:, :, None] * directions, embeddings.reshape(ROWS, -1, dimension)], axis=1)


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)


def normalized(weights, name, x):
    """Layer normalization of the last axis."""
    centered = x - x.mean(axis=-1, keepdims=True)
    scaled = centered / np.sqrt((centered**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def gate_layers(weights, name, x):
    return linear(weights, f"{name}.2", np.maximum(linear(weights, f"{name}.0", x), 0))


def scaling(weights, name, x):
    return 2 * sigmoid(gate_layers(weights, f"{name}.layers", x))


@pytest.mark.parametrize(("dense", "first"), [(2, 0), (0, 0), (2, 1)])
def test_xdeepfm_sums_the_products_of_features_vector_by_vector(dense, first):
    built, weights = network("xdeepfm", dense=dense, over_layers=[6], cin_layers=[3, 2], first_order_columns=first)
    of_linear = of_others = x = vectors(dense)
    if first:
        embeddings = x[:, dense:].reshape(ROWS, len(FEATURES), DIMENSION)
        parts = np.split(embeddings, [first], axis=2)
        of_linear, of_others = (np.hstack([x[:, :dense], part.reshape(ROWS, -1)]) for part in parts)
    hidden = features = feature_vectors(weights, "interaction.features", of_others, DIMENSION - first)
    sums = []
    for at, width in enumerate([3, 2]):
        mixing = weights[f"interaction.layers.{at}.weight"].reshape(width, hidden.shape[1], features.shape[1])
        hidden = np.einsum("khf,bhd,bfd->bkd", mixing, hidden, features)
        sums.append(hidden.sum(axis=2))
    wide = linear(weights, "wide_and_deep.wide", of_linear) + layers(weights, "wide_and_deep.deep", of_others, True)
    expected = wide + linear(weights, "interaction.head", np.hstack(sums))
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-12)


@pytest.mark.parametrize(("dense", "over"), [(2, [6]), (0, [])])
def test_autoint_lets_every_feature_attend_to_all(dense, over):
    built, weights = network(
        "autoint", dense=dense, over_layers=over, attention_blocks=2, attention_heads=3, attention_dim=6
    )
    x = vectors(dense)
    features = feature_vectors(weights, "features", x)
    for at in range(2):
        queries, keys, values, residual = np.split(linear(weights, f"layers.{at}.project", features), 4, axis=2)
        heads = []
        for q, k, v in zip(*(np.split(part, 3, axis=2) for part in (queries, keys, values)), strict=True):
            scores = np.exp(q @ k.swapaxes(1, 2))
            heads.append(scores / scores.sum(axis=2, keepdims=True) @ v)
        features = np.maximum(np.concatenate(heads, axis=2) + residual, 0)
    expected = linear(weights, "head", features.reshape(ROWS, -1))
    expected += layers(weights, "deep", x, True) if over else 0
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-12)


@pytest.mark.parametrize("dense", [2, 0])
@pytest.mark.parametrize("order", ["parallel", "serial"])
def test_masknet_multiplies_what_its_blocks_see_by_masks_of_the_embeddings(order, dense):
    built, weights = network(
        "masknet", dense=dense, mask_layers=[5, 6], mask_order=order, gates={"width": 7}, over_layers=[3]
    )
    x = vectors(dense)
    features = feature_vectors(weights, "features", x)
    embeddings = features.reshape(ROWS, -1)

    def block(at, hidden):
        name = f"blocks.{at}"
        masked = gate_layers(weights, f"{name}.mask", embeddings) * hidden
        return np.maximum(normalized(weights, f"{name}.norm", linear(weights, f"{name}.layer", masked)), 0)

    seen = normalized(weights, "norm", features).reshape(ROWS, -1)
    hidden = block(1, block(0, seen)) if order == "serial" else np.hstack([block(0, seen), block(1, seen)])
    np.testing.assert_allclose(predicted(built, x), layers(weights, "over", hidden, True), rtol=1e-9)


@pytest.mark.parametrize("dense", [2, 0])
@pytest.mark.parametrize("second", [[], [8]])
def test_finalmlp_multiplies_two_streams_head_by_head(second, dense):
    first = ["s2", "d1"] if dense else ["s2"]
    gates = {"width": 5, "first": first}
    built, weights = network(
        "finalmlp", dense=dense, over_layers=[6, 4], second_layers=second, fusion_heads=2, gates=gates
    )
    x = vectors(dense)
    features = feature_vectors(weights, "features", x)
    chosen = features[:, [1, 4] if dense else [2]].reshape(ROWS, -1)
    flat = features.reshape(ROWS, -1)
    of_first = layers(weights, "first.layers", flat * scaling(weights, "first.gate", chosen))
    of_second = layers(weights, "second.layers", flat * scaling(weights, "second.gate", weights["second.seen"]))
    expected = linear(weights, "fusion.first", of_first) + linear(weights, "fusion.second", of_second)
    heads = zip(np.split(of_first, 2, axis=1), np.split(of_second, 2, axis=1), weights["fusion.products"], strict=True)
    for one, other, products in heads:
        products = products.reshape(one.shape[1], other.shape[1], len(LABELS))
        expected += np.einsum("bx,xyt,by->bt", one, products, other)
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-12)


@pytest.mark.parametrize(("dense", "linear_vectors"), [(2, 2), (0, 2), (2, 1)])
def test_wukong_stacks_factorization_machines_beside_linear_combinations(dense, linear_vectors):
    own = {"layers": 3, "product_vectors": 3, "linear_vectors": linear_vectors, "rank": 2, "hidden_layers": [6]}
    built, weights = network("wukong", dense=dense, wukong=own, over_layers=[5])
    x = vectors(dense)
    features = feature_vectors(weights, "features", x)
    for at in range(3):
        name, columns = f"layers.{at}", features.swapaxes(1, 2)
        products = features @ features.swapaxes(1, 2) @ weights[f"{name}.products.project.weight"].T
        seen = normalized(weights, f"{name}.products.norm", products.reshape(ROWS, -1))
        of_products = layers(weights, f"{name}.products.layers", seen, True).reshape(ROWS, 3, DIMENSION)
        combined = linear(weights, f"{name}.combine", columns).swapaxes(1, 2)
        kept = features
        if features.shape[1] != 3 + linear_vectors:
            kept = linear(weights, f"{name}.residual", columns).swapaxes(1, 2)
        features = normalized(weights, f"{name}.norm", np.concatenate([of_products, combined], axis=1) + kept)
    expected = layers(weights, "over", features.reshape(ROWS, -1), True)
    np.testing.assert_allclose(predicted(built, x), expected, rtol=1e-9)


@pytest.mark.parametrize(("domain", "personal"), [(["s1"], ["s2", "d0"]), (["s1"], []), ([], ["s0"])])
def test_pepnet_scales_features_by_the_domain_and_towers_by_the_person(domain, personal):
    gates = {"width": 5, "domain": domain, "personal": personal}
    built, weights = network("pepnet", tower_layers=[6, 3], gates=gates)
    x = vectors()
    columns = {"d0": x[:, :1], "d1": x[:, 1:2]} | dict(zip(FEATURES, np.split(x[:, 2:], 3, axis=1), strict=True))

    def beside(names, rest):
        return np.hstack([*(value for name, value in columns.items() if name in names), rest])

    features = x * scaling(weights, "gate", beside(domain, x)) if domain else x
    expected = []
    for name in ("click", "keep%2Eit", "%type"):
        hidden = features
        for at in range(2):
            hidden = layers(weights, f"towers.{name}.layers.{at}", hidden)
            if personal:
                hidden = hidden * scaling(weights, f"towers.{name}.gates.{at}", beside(personal, features))
        expected.append(linear(weights, f"towers.{name}.head", hidden))
    np.testing.assert_allclose(predicted(built, x), np.hstack(expected), rtol=1e-12)


def test_gates_of_pepnet_train_the_features_that_they_are_of_and_no_others():
    built, _ = network("pepnet", tower_layers=[3], gates={"personal": ["s2"]})
    with torch.no_grad():
        for tower in built.towers.values():
            tower.layers[0]._mlp[0]._linear.weight.zero_()  # so that only gates see the features
    x = torch.from_numpy(vectors()).requires_grad_()
    built(x).sum().backward()
    assert (x.grad.abs().sum(dim=0) > 0).tolist() == [False] * (WIDTH - DIMENSION) + [True] * DIMENSION


def test_the_gate_of_pepnets_domain_trains_the_features_of_the_domain_and_no_others():
    built, weights = network("pepnet", tower_layers=[], gates={"domain": ["s2"]})
    x = torch.from_numpy(vectors()).requires_grad_()
    built(x).sum().backward()
    factors = scaling(weights, "gate", np.hstack([vectors()[:, -DIMENSION:], vectors()]))
    past_the_gate = factors * sum(weights[f"towers.{name}.head.weight"] for name in built.towers)
    np.testing.assert_allclose(x.grad[:, :-DIMENSION], past_the_gate[:, :-DIMENSION], rtol=1e-12)
    assert not np.isclose(x.grad[:, -DIMENSION:], past_the_gate[:, -DIMENSION:]).any()


# Each with the towers that dropout, normalization and activation are for, and the blocks that take two of them.
HIDDEN = {
    "xdeepfm": ({"over_layers": [6, 3]}, 2, 0),
    "autoint": ({"over_layers": [6, 3], "attention_blocks": 2}, 2, 2),
    "masknet": ({"over_layers": [6], "mask_layers": [5, 4, 3]}, 1, 3),
    "finalmlp": ({"over_layers": [6, 3], "second_layers": [4]}, 3, 0),
    "wukong": ({"over_layers": [6], "wukong": {"layers": 2, "hidden_layers": [5, 4]}}, 5, 0),
    "pepnet": ({"tower_layers": [6, 3], "gates": {"domain": ["s0"], "personal": ["s1"]}}, 2 * len(LABELS), 0),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_keys_of_hidden_layers_reach_all_towers(name):
    keys, layers_of_towers, blocks = HIDDEN[name]
    built, _ = network(name, **keys, dropout=0.2, normalization="batch", activation="gelu")
    kinds = [type(module) for module in built.modules()]
    found = {kind: kinds.count(kind) for kind in (Dropout, BatchNorm, nn.GELU)}
    assert found == {
        Dropout: layers_of_towers + blocks,
        BatchNorm: layers_of_towers,
        nn.GELU: layers_of_towers + blocks,
    }
