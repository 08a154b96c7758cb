"""The ids of a batch in TorchRec's form."""

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


def with_values(sparse: KeyedJaggedTensor, values: Tensor) -> KeyedJaggedTensor:
    """Returns `sparse` with other ids and the same lengths and weights."""
    return KeyedJaggedTensor(
        keys=sparse.keys(),
        values=values,
        weights=sparse.weights_or_none(),
        lengths=sparse.lengths(),
        stride=sparse.stride(),
        length_per_key=sparse.length_per_key(),
    )


def split_jagged(sparse: KeyedJaggedTensor, parts: int) -> list[KeyedJaggedTensor]:
    """Splits a batch into equal microbatches of consecutive samples."""
    features, samples = len(sparse.keys()), sparse.stride() // parts
    lengths = sparse.lengths().view(features, parts, samples)
    sizes = lengths.sum(2).flatten().tolist()  # feature by feature, and part by part in each
    weights = sparse.weights_or_none()
    return [
        KeyedJaggedTensor(
            keys=sparse.keys(),
            values=_part(sparse.values(), sizes, part, parts),
            weights=None if weights is None else _part(weights, sizes, part, parts),
            lengths=lengths[:, part].flatten(),
            stride=samples,
            length_per_key=sizes[part::parts],
        )
        for part in range(parts)
    ]


def _part(values: Tensor, sizes: list[int], part: int, parts: int) -> Tensor:
    return torch.cat(values.split(sizes)[part::parts])
