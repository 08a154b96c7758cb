"""DLRM's own parts, against TorchRec's."""

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


def model_of(features):
    settings = {
        "data": {"dense": {"d": {}}, "sparse": {f"s{number}": {"rows": 5} for number in range(features)}},
        "model": {"embedding_dim": DIMENSION},
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


def test_embeddings_are_torchrecs_in_their_order():
    assert isinstance(model_of(3).get_submodule("sparse_arch"), PooledVectors)
    shared = EmbeddingBagConfig(num_embeddings=9, embedding_dim=DIMENSION, name="t", feature_names=["c", "a"])
    own = EmbeddingBagConfig(num_embeddings=7, embedding_dim=DIMENSION, name="u", feature_names=["b"])
    tables = EmbeddingBagCollection(tables=[shared, own])
    ids = KeyedJaggedTensor(["a", "b", "c"], torch.arange(7), lengths=torch.tensor([2, 1, 0, 1, 1, 2]))
    found, expected = PooledVectors(tables)(ids), SparseArch(tables)(ids)
    assert expected.shape == (2, 3, DIMENSION)
    assert torch.equal(found, expected)
