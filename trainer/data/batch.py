"""The local batch of a step, as tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from trainer.config.data import DataConfig
from trainer.data.buffers import empty
from trainer.data.jagged import split_jagged
from trainer.data.rows import NO_ID, Rows, join_bags
from trainer.rules.weights import ids_in, pooling_weights, weights_of


@dataclass
class Batch(Pipelineable):
    """The local batch of one step: `B` samples, `D` dense features, `F` sparse features, `L` labels, `G` groups.

    Attributes:
        dense: Dense features, `[B, D]` float32.
        sparse: Ids; the keys are the sparse features in the order of the configuration. If the ids of one feature have
            weights, all ids have weights, and the pooling is a weighted sum.
        labels: Labels, `[B, L]` float32.
        weights: Weight of each sample, `[B]` float32; 0 for padding.
        scale: A scalar. The sum of these samples' weighted losses times `scale`, averaged over the ranks, is the mean
            over the real samples of the global batch.
        groups: The groups of each sample, `[B, G]` int64.
        log_q: Logarithm of the probability that a draw from the catalogue gives the sample's item, `[B]` float32; minus
            infinity if no draw can give the item, 0 without a catalogue.

    Negatives from the catalogue follow the samples of each lane (`LaneRows`). A negative has an item and no query, and
    weighs 0, so that no task and no metric counts it.
    """

    dense: Tensor
    sparse: KeyedJaggedTensor
    labels: Tensor
    weights: Tensor
    scale: Tensor
    groups: Tensor
    log_q: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """Returns the batch on another device."""
        return Batch(
            *(getattr(self, field.name).to(device=device, non_blocking=non_blocking) for field in fields(self))
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Tells the allocator that another stream uses this batch."""
        for field in fields(self):
            getattr(self, field.name).record_stream(stream)

    def pin_memory(self) -> "Batch":
        """Returns the batch in memory that a GPU can copy from without waiting."""
        return Batch(*(getattr(self, field.name).pin_memory() for field in fields(self)))

    def split(self, number: int) -> list["Batch"]:
        """Splits the batch into equal microbatches of consecutive samples; their losses add up to the batch's loss."""
        if number == 1:
            return [self]
        columns = [_split(getattr(self, field.name), number) for field in fields(self)]
        return [Batch(*values) for values in zip(*columns, strict=True)]


def _split(value: Any, number: int) -> Sequence[Any]:
    if isinstance(value, KeyedJaggedTensor):
        return split_jagged(value, number)
    return value.chunk(number) if value.dim() else [value] * number


def to_batch(rows: Rows, config: DataConfig, scale: float) -> Batch:
    """Returns rows as tensors."""
    return to_batches([rows], config, [scale])[0]


def to_batches(
    lanes: Sequence[Rows], config: DataConfig, scales: Sequence[float], log_q: np.ndarray | None = None
) -> list[Batch]:
    """Returns the rows of some steps as a batch for each step, in which the lanes follow one another.

    Args:
        lanes: The rows of each lane, step after step, `R` of all lanes. Several steps have no bags.
        config: The columns.
        scales: The scale of each step.
        log_q: The logarithms `[R]` of one step, None without a catalogue.
    """
    steps, split = len(scales), len(config.dense)
    dense = _by_row([rows.numbers[:split] for rows in lanes], steps)
    labels = _by_row([rows.numbers[split:-1] for rows in lanes], steps)
    weights = _by_row([rows.numbers[-1:] for rows in lanes], steps)
    groups = _by_row([rows.groups for rows in lanes], steps)
    ids, bags = _by_step([rows.ids for rows in lanes], steps), join_bags([rows.bags for rows in lanes])
    return [
        Batch(
            dense=dense[step],
            sparse=_to_jagged(ids[step], bags, config),
            labels=labels[step],
            weights=weights[step].view(-1),
            scale=torch.tensor(scale, dtype=torch.float32),
            groups=groups[step],
            log_q=torch.zeros(len(weights[step])) if log_q is None else torch.from_numpy(log_q),
        )
        for step, scale in enumerate(scales)
    ]


def _by_row(blocks: Sequence[np.ndarray], steps: int) -> Tensor:
    """Returns blocks of columns of each lane, `[C, steps * R]`, as `[steps, lanes * R, C]`."""
    columns, rows = len(blocks[0]), blocks[0].shape[1] // steps
    joined = empty((steps, len(blocks), rows, columns), blocks[0].dtype)
    for lane, block in enumerate(blocks):
        # Joined and transposed at once, into no view: each user of a view would transpose again.
        joined[:, lane] = block.reshape(columns, steps, rows).transpose(1, 2, 0)
    return torch.from_numpy(joined.reshape(steps, len(blocks) * rows, columns))


def _by_step(blocks: Sequence[np.ndarray], steps: int) -> np.ndarray:
    """Returns blocks of columns of each lane, `[C, steps * R]`, as `[steps, C, lanes * R]`."""
    columns, rows = len(blocks[0]), blocks[0].shape[1] // steps
    joined = empty((steps, columns, len(blocks), rows), blocks[0].dtype)
    for lane, block in enumerate(blocks):
        joined[:, :, lane] = block.reshape(columns, steps, rows).transpose(1, 0, 2)
    return joined.reshape(steps, columns, len(blocks) * rows)


def _to_jagged(ids: np.ndarray, bags: dict[str, pa.LargeListArray], config: DataConfig) -> KeyedJaggedTensor:
    """Returns ids feature by feature. Ids and lengths are int32, which halves the bytes that ranks exchange."""
    # The first two cases need no loop over features: most data has only single ids, and a block of single ids without
    # nulls already has TorchRec's layout.
    if not bags and (ids.size == 0 or ids.min() > NO_ID):
        values, lengths = ids.reshape(-1), _ones(ids.size)
        of_features = [ids.shape[1]] * len(config.sparse)
    elif not bags:
        present = ids > NO_ID
        values, lengths = ids[present], present.reshape(-1).astype(np.int32)
        of_features = present.sum(axis=1).tolist()
    else:
        single = zip((name for name in config.sparse if name not in bags), ids, strict=True)
        found = {name: (row[row > NO_ID], row > NO_ID) for name, row in single}
        found |= {name: (ids_in(bag), bag.value_lengths()) for name, bag in bags.items()}
        values = np.concatenate([found[name][0] for name in config.sparse])
        lengths = np.concatenate([found[name][1] for name in config.sparse]).astype(np.int32)
        of_features = [len(found[name][0]) for name in config.sparse]
    has_weights = config.has_id_weights
    weights = torch.from_numpy(pooling_weights(config.sparse, lengths, weights_of(bags))) if has_weights else None
    return KeyedJaggedTensor(
        keys=list(config.sparse),
        values=torch.from_numpy(values),
        weights=weights,
        lengths=torch.from_numpy(lengths),
        stride=ids.shape[1],
        # Counted here, once: TorchRec would count on the device, and wait for a GPU at every step.
        length_per_key=of_features,
    )


@lru_cache(maxsize=2)
def _ones(size: int) -> np.ndarray:
    """Returns the lengths of single ids. Batches of one size share the array, which never changes."""
    return np.ones(size, np.int32)
