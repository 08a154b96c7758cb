"""DLRM's own parts, against TorchRec's."""

import numpy as np
import pytest
import torch
from torchrec.models.dlrm import InteractionArch, SparseArch
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.root import Config
from trainer.models.builder import build_model
from trainer.models.dlrm import PairwiseProducts, PooledVectors

DIMENSION, SAMPLES = 8, 64


def model_of(features, dense=("d",), **model):
    settings = {
        "data": {
            "dense": {name: {} for name in dense},
            "sparse": {f"s{number}": {"rows": 5} for number in range(features)},
        },
        "model": {"embedding_dim": DIMENSION} | model,
    }
    config = Config.model_validate(settings)
    return build_model(config.data, config.model, config.predictions(), torch.device("cpu"))


@pytest.mark.parametrize("features", [1, 2, 26])
def test_products_and_gradients_are_torchrecs_bit_for_bit(features):
    interaction = model_of(features).get_submodule("inter_arch")
    assert isinstance(interaction, PairwiseProducts)
    results = []
    for module in (interaction, InteractionArch(features)):
        torch.manual_seed(0)
        dense = torch.randn(SAMPLES, DIMENSION, requires_grad=True)
        sparse = torch.randn(SAMPLES, features, DIMENSION, requires_grad=True)
        products = module(dense, sparse)
        products.square().sum().backward()
        results.append((products, dense.grad, sparse.grad))
    assert products.shape == (SAMPLES, DIMENSION + features * (features + 1) // 2)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.parametrize("features", [1, 3])
def test_without_numbers_a_learned_vector_takes_part_in_the_products(features):
    model = model_of(features, dense=(), over_layers=[5]).double()
    weights = {name: value.numpy() for name, value in model.state_dict().items() if not value.is_meta}
    embedded = np.random.default_rng(0).standard_normal((SAMPLES, features, DIMENSION))
    learned = np.tile(weights["dense_arch.vector"], (SAMPLES, 1, 1))
    vectors = np.concatenate([learned, embedded], axis=1)
    rows, columns = np.triu_indices(features + 1, k=1)
    x = np.concatenate([learned[:, 0], (vectors[:, rows] * vectors[:, columns]).sum(2)], axis=1)
    for layer in ("over_arch.model.0._mlp.0._linear", "over_arch.model.1"):
        x = np.maximum(x, 0) if layer.endswith("1") else x
        x = x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
    dense = model.get_submodule("dense_arch")(torch.empty(SAMPLES, 0))
    products = model.get_submodule("inter_arch")(dense, torch.from_numpy(embedded))
    found = model.get_submodule("over_arch")(products).detach().numpy()
    np.testing.assert_allclose(found, x, rtol=0, atol=1e-12)
    assert np.ptp(found) > 0


def test_over_layers_may_see_the_embeddings():
    model = model_of(3, over_layers=[5], over_embeddings=True)
    dense, sparse = torch.randn(SAMPLES, DIMENSION), torch.randn(SAMPLES, 3, DIMENSION)
    found = model.get_submodule("inter_arch")(dense, sparse)
    assert torch.equal(found, torch.cat([InteractionArch(3)(dense, sparse), sparse.flatten(1)], dim=1))
    assert model.get_submodule("over_arch")(found).shape == (SAMPLES, 1)


def test_embeddings_are_torchrecs_in_their_order():
    assert isinstance(model_of(3).get_submodule("sparse_arch"), PooledVectors)
    shared = EmbeddingBagConfig(num_embeddings=9, embedding_dim=DIMENSION, name="t", feature_names=["c", "a"])
    own = EmbeddingBagConfig(num_embeddings=7, embedding_dim=DIMENSION, name="u", feature_names=["b"])
    tables = EmbeddingBagCollection(tables=[shared, own])
    ids = KeyedJaggedTensor(["a", "b", "c"], torch.arange(7), lengths=torch.tensor([2, 1, 0, 1, 1, 2]))
    found, expected = PooledVectors(tables)(ids), SparseArch(tables)(ids)
    assert expected.shape == (2, 3, DIMENSION)
    assert torch.equal(found, expected)
