"""The vectors of queries and items, which models of retrieval compare by their inner product."""

import torch
from torch import Tensor
from torch.nn import functional

from trainer.config.model import ModelConfig


def vector_pairs(queries: Tensor, items: Tensor, config: ModelConfig) -> Tensor:
    """Returns vectors of queries and items, `[..., 2, D]`, from `[..., D]` each; as `queries_and_item`."""
    return queries_and_item(queries.unsqueeze(-2), items, config)


def queries_and_item(queries: Tensor, items: Tensor, config: ModelConfig) -> Tensor:
    """Returns the vectors of some queries and then of an item, `[..., Q + 1, D]`, from `[..., Q, D]` and `[..., D]`.

    With `item_bias` the first column is 1 in a query's vector and the bias in an item's, so that the bias is a part of
    the inner product; with `normalize` the other columns have length 1.
    """
    vectors = torch.cat([queries, items.unsqueeze(-2)], dim=-2).float()
    if not config.item_bias:
        return functional.normalize(vectors, dim=-1) if config.normalize else vectors
    bias, vectors = vectors.tensor_split([1], dim=-1)
    bias = torch.cat([torch.ones_like(bias[..., :-1, :]), bias[..., -1:, :]], dim=-2)
    return torch.cat([bias, functional.normalize(vectors, dim=-1) if config.normalize else vectors], dim=-1)
