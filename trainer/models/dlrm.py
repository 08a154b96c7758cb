"""DLRM (Naumov et al., arXiv:1906.00091) and DLRM with DCNv2 interaction (Wang et al., arXiv:2008.13535)."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torchrec.models.dlrm import DLRM, DLRM_DCN, OverArch, SparseArch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.core.errors import InputError
from trainer.models.base import ModelInputs
from trainer.models.hidden_layers import completed
from trainer.models.pooled import equal_dimension


def dlrm(inputs: ModelInputs) -> nn.Module:
    """Builds DLRM: embeddings and dense features interact by their inner products."""
    model, config = _build(DLRM, inputs), inputs.config
    model.inter_arch = PairwiseProducts(inputs)
    if config.over_embeddings:
        vectors = len(inputs.sparse_features) + 1
        width = vectors * config.embedding_dim + vectors * (vectors - 1) // 2
        model.over_arch = OverArch(width, [*config.over_layers, sum(inputs.columns)], inputs.device)
    return completed(model, inputs)


def dlrm_dcn(inputs: ModelInputs) -> nn.Module:
    """Builds DLRM whose interaction is a stack of low-rank cross layers, as in MLPerf's recommendation benchmark."""
    config = inputs.config
    model = _build(DLRM_DCN, inputs, dcn_num_layers=config.cross_layers, dcn_low_rank_dim=config.cross_rank)
    return completed(model, inputs)


class PooledVectors(SparseArch):
    """The embeddings of a batch, a vector for each feature."""

    def forward(self, features: KeyedJaggedTensor) -> Tensor:
        """Returns the pooled embeddings, `[B, F, D]`."""
        # The tables give them in this order, under every plan. TorchRec takes them apart by name and joins them again.
        return self.embedding_bag_collection(features).values().view(-1, self.F, self.D)


class LearnedVector(nn.Module):
    """A learned vector that stands for the dense features if a model has none.

    The product of the vector and an embedding is a term for a single feature, beside the terms for pairs.

    Args:
        dimension: Size of the vector, `D`.
        device: Device of the vector.
    """

    def __init__(self, dimension: int, device: torch.device) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(dimension, device=device) / dimension**0.5)

    def forward(self, dense_features: Tensor) -> Tensor:
        """Returns the vector for each sample, `[B, 0]` to `[B, D]`."""
        return self.vector.expand(dense_features.shape[0], -1)


class PairwiseProducts(nn.Module):
    """The inner products of all pairs of embeddings, beside the dense features: TorchRec's interaction, bit for bit.

    With model.over_embeddings, the embeddings themselves follow.

    Args:
        inputs: The inputs of the model.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        # By rows and columns, as TorchRec picks the pairs, backward sums into a matrix in an order of its own: 17.7 ms
        # for 8,192 samples of 27 embeddings on 2 cores, by position 6.7. TorchRec's indices also stay on the CPU, and a
        # GPU waited for them twice a step.
        vectors = 1 + len(inputs.sparse_features)
        rows, columns = torch.triu_indices(vectors, vectors, offset=1, device=inputs.device)
        self.register_buffer("pairs", rows * vectors + columns, persistent=False)
        self._with_embeddings = inputs.config.over_embeddings

    def forward(self, dense_features: Tensor, sparse_features: Tensor) -> Tensor:
        """Returns the dense features and the products, `[B, D + pairs]` or, with embeddings, `[B, D + pairs + F D]`.

        Args:
            dense_features: `[B, D]`.
            sparse_features: `[B, F, D]`.
        """
        vectors = torch.cat((dense_features.unsqueeze(1), sparse_features), dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        pairs = self.pairs.expand(dense_features.shape[0], -1)
        embeddings = (sparse_features.flatten(1),) if self._with_embeddings else ()
        return torch.cat((dense_features, products.gather(1, pairs), *embeddings), dim=1)


def _build(model: Callable[..., nn.Module], inputs: ModelInputs, **options: int) -> nn.Module:
    config = inputs.config
    if not inputs.sparse_features:
        raise InputError(
            f"model.name is '{config.name}', which multiplies embeddings with each other, but data.sparse is empty; "
            "name sparse features, or use wide_deep, deepfm, mmoe, ple, esmm or dbmtl"
        )
    if not config.over_layers:
        raise InputError("model.over_layers is empty; name at least one hidden layer")
    dimension = equal_dimension(inputs)  # the interaction multiplies embeddings of all tables with one another
    built = model(
        inputs.tables,
        max(1, inputs.dense_features),
        [*config.dense_layers, dimension] if inputs.dense_features else [dimension],
        [*config.over_layers, sum(inputs.columns)],
        dense_device=inputs.device,
        **options,
    )
    built.sparse_arch = PooledVectors(inputs.tables)
    if inputs.dense_features == 0:
        built.dense_arch = LearnedVector(dimension, inputs.device)
    return built
