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
from trainer.data.host_tensors import empty_tensor, parts, to_tensor
from trainer.data.jagged import SingleIds, split_jagged
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
        """Returns the batch on a device."""
        if device == self.dense.device:
            return self
        return Batch(
            *(getattr(self, field.name).to(device=device, non_blocking=non_blocking) for field in fields(self))
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Tells the allocator that another stream uses this batch."""
        for field in fields(self):
            getattr(self, field.name).record_stream(stream)

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
    of_steps = to_tensor(np.array(scales, np.float32))
    return [
        Batch(
            dense=dense[step],
            sparse=_to_jagged(ids[step], bags, config),
            labels=labels[step],
            weights=weights[step].view(-1),
            scale=of_steps[step],
            groups=groups[step],
            log_q=_constant(0.0, len(weights[step]), np.float32) if log_q is None else to_tensor(log_q),
        )
        for step in range(steps)
    ]


def _by_row(blocks: Sequence[np.ndarray], steps: int) -> list[Tensor]:
    """Returns blocks of columns of each lane, `[C, steps * R]`, as `[lanes * R, C]` of each step."""
    columns, rows = len(blocks[0]), blocks[0].shape[1] // steps
    joined = empty_tensor((steps, len(blocks), rows, columns), blocks[0].dtype)
    for lane, block in enumerate(blocks):
        # Joined and transposed at once, into no view: each user of a view would transpose again.
        joined.numpy()[:, lane] = block.reshape(columns, steps, rows).transpose(1, 2, 0)
    return parts(joined.view(steps, len(blocks) * rows, columns))


def _by_step(blocks: Sequence[np.ndarray], steps: int) -> list[Tensor]:
    """Returns blocks of columns of each lane, `[C, steps * R]`, as `[C, lanes * R]` of each step."""
    columns, rows = len(blocks[0]), blocks[0].shape[1] // steps
    joined = empty_tensor((steps, columns, len(blocks), rows), blocks[0].dtype)
    for lane, block in enumerate(blocks):
        joined.numpy()[:, :, lane] = block.reshape(columns, steps, rows).transpose(1, 0, 2)
    return parts(joined.view(steps, columns, len(blocks) * rows))


def _to_jagged(ids: Tensor, bags: dict[str, pa.LargeListArray], config: DataConfig) -> KeyedJaggedTensor:
    """Returns ids feature by feature. Ids and lengths are int32, which halves the bytes that ranks exchange."""
    # The first two cases need no loop over features: most data has only single ids, and a block of single ids without
    # nulls already has TorchRec's layout.
    rows = ids.numpy()
    if not bags and (rows.size == 0 or rows.min() > NO_ID):
        values, lengths, of_features = ids.view(-1), _constant(1, rows.size, np.int32), len(rows) * [rows.shape[1]]
    elif not bags:
        present = rows > NO_ID
        values, lengths = to_tensor(rows[present]), to_tensor(present.reshape(-1).astype(np.int32))
        of_features = present.sum(axis=1).tolist()
    else:
        single = zip((name for name in config.sparse if name not in bags), rows, strict=True)
        found = {name: (row[row > NO_ID], row > NO_ID) for name, row in single}
        found |= {name: (ids_in(bag), bag.value_lengths()) for name, bag in bags.items()}
        values = to_tensor(np.concatenate([found[name][0] for name in config.sparse]))
        lengths = to_tensor(np.concatenate([found[name][1] for name in config.sparse]).astype(np.int32))
        of_features = [len(found[name][0]) for name in config.sparse]
    has_weights = config.has_id_weights
    weights = pooling_weights(config.sparse, lengths.numpy(), weights_of(bags)) if has_weights else None
    kind = KeyedJaggedTensor if bags or has_weights else SingleIds
    return kind(
        keys=list(config.sparse),
        values=values,
        weights=None if weights is None else to_tensor(weights),
        lengths=lengths,
        stride=rows.shape[1],
        # Counted here, once: TorchRec would count on the device, and wait for a GPU at every step.
        length_per_key=of_features,
    )


@lru_cache(maxsize=4)
def _constant(value: float, size: int, dtype: type[np.number]) -> Tensor:
    """Returns what is alike in all batches of a size, such as lengths of single ids, which share it unchanged."""
    return to_tensor(np.full(size, value, dtype))
