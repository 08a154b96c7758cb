"""The ids of a batch in TorchRec's form."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.data.rows import NO_ID


class SingleIds(KeyedJaggedTensor):
    """Ids of features that have at most one for each sample, without weights.

    All ranks of a step have such ids, or none, since they are exchanged in another way: `trainer.plan.sharding`.
    """

    def to(self, device: torch.device, non_blocking: bool = False, dtype: torch.dtype | None = None) -> "SingleIds":
        """Returns the ids on another device; of weights, which these ids lack, `dtype` would be the type."""
        return SingleIds(
            keys=self.keys(),
            values=self.values().to(device, non_blocking=non_blocking),
            lengths=self.lengths().to(device, non_blocking=non_blocking),
            stride=self.stride(),
            length_per_key=self.length_per_key(),
        )

    def block(self) -> Tensor:
        """Returns the ids of each feature, `[F, B]`, NO_ID without one."""
        values, shape = self.values(), (len(self.keys()), self.stride())
        if values.numel() == self.lengths().numel():
            return values.view(shape)
        present = self.lengths().view(shape).bool()
        return values.new_full(shape, NO_ID).masked_scatter_(present, values)


def of_block(ids: Tensor, keys: Sequence[str]) -> SingleIds:
    """Returns single ids from a block on any device, `[F, B]`, with NO_ID where there is none."""
    present, samples = ids > NO_ID, ids.shape[1]
    if present.all():
        values, of_features = ids.reshape(-1), len(keys) * [samples]
    else:
        values, of_features = ids[present], present.sum(1).tolist()
    lengths = present.view(-1).int()
    return SingleIds([*keys], values, lengths=lengths, stride=samples, length_per_key=of_features)


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
