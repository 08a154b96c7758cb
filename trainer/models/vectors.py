"""The vectors of queries and items, which models of retrieval compare by their inner product."""

import torch
from torch import Tensor
from torch.nn import functional

from trainer.config.model import ModelConfig


def vector_pairs(queries: Tensor, items: Tensor, config: ModelConfig) -> Tensor:
    """Returns vectors of queries and items, `[..., 2, D]`, from `[..., D]` each.

    With `item_bias` the first column is 1 in a query's vector and the bias in an item's, so that the bias is a part of
    the inner product; with `normalize` the other columns have length 1.
    """
    pairs = torch.stack([queries, items], dim=-2).float()
    if not config.item_bias:
        return functional.normalize(pairs, dim=-1) if config.normalize else pairs
    bias, pairs = pairs.tensor_split([1], dim=-1)
    bias = torch.stack([torch.ones_like(bias[..., 0, :]), bias[..., 1, :]], dim=-2)
    return torch.cat([bias, functional.normalize(pairs, dim=-1) if config.normalize else pairs], dim=-1)
