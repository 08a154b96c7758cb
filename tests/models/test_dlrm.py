"""DLRM's interaction, against TorchRec's."""

import pytest
import torch
from torchrec.models.dlrm import InteractionArch

from trainer.config.root import Config
from trainer.models.builder import build_model
from trainer.models.dlrm import PairwiseProducts

DIMENSION, SAMPLES = 8, 64


@pytest.mark.parametrize("features", [1, 2, 26])
def test_products_and_gradients_are_torchrecs_bit_for_bit(features):
    names = [f"s{number}" for number in range(features)]
    config = Config.model_validate(
        {
            "data": {"dense": {"d": {}}, "sparse": {name: {"rows": 5} for name in names}},
            "model": {"embedding_dim": DIMENSION},
        }
    )
    model = build_model(config.data, config.model, config.predictions(), torch.device("cpu"))
    interaction = model.get_submodule("inter_arch")
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
