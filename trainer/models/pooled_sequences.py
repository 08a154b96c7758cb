"""Pooled features whose table serves sequences, too: their embeddings come one by one, and are pooled here.

TorchRec keeps the tables of pooled features and those of sequences apart. Two copies of a table would learn different
rows, so a table with a sequence is among those of sequences, and looks up every id of its pooled features, too.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchrec.sparse.jagged_tensor import JaggedTensor


class PooledSequences(nn.Module):
    """Pools embeddings of ids, as the tables of pooled features do; a bag without ids gives zeros.

    Args:
        poolings: `sum` or `mean`, by feature; `F` of them.
        is_weighted: Whether ids have weights, with which every pooling is a weighted sum.
    """

    def __init__(self, poolings: Mapping[str, str], is_weighted: bool) -> None:
        super().__init__()
        self._poolings, self._is_weighted = poolings, is_weighted

    def forward(self, embeddings: Mapping[str, Any], sparse: Mapping[str, Any]) -> Tensor:
        """Returns the pooled embeddings of the features, `[B, F * D]`.

        Args:
            embeddings: The embeddings of ids by feature, as tables of sequences return them.
            sparse: The ids.
        """
        pooled = [self._pooled(name, embeddings[name], sparse) for name in self._poolings]
        return torch.cat(pooled, dim=1)

    def _pooled(self, name: str, found: Any, sparse: Mapping[str, Any]) -> Tensor:
        if not isinstance(found, JaggedTensor):  # exported tables pool
            return found
        values, offsets = found.values(), found.offsets()
        # The embeddings are the rows of a table here, and each is looked up once.
        return functional.embedding_bag(
            torch.arange(len(values), dtype=offsets.dtype, device=offsets.device),
            values,
            offsets,
            mode="sum" if self._is_weighted else self._poolings[name],
            per_sample_weights=sparse[name].weights() if self._is_weighted else None,
            include_last_offset=True,
        )
