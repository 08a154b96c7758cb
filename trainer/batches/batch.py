"""The local batch of a step: rows as tensors in the host's memory, with ids in TorchRec's form."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from trainer.batches.rows import NO_ID, Rows, empty, join_bags, take
from trainer.config.data import BalanceConfig, CatalogueConfig, DataConfig, EvenStepsConfig
from trainer.rules.id_lists import ids_in, pooling_weights, weights_of

# Why pinned memory is allocated here and filled by NumPy: `Tensor.pin_memory` copies, and starts a thread on every core
# for it. The copies took 4.5 of the 6.3 ms of a step (an H200 with 16 cores, DLRM with 26 tables, batches of 8,192).
_has_gpu = cache(torch.cuda.is_available)


def empty_tensor(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> Tensor:
    """Returns a tensor to be filled through `numpy()`. Its memory is reused once no tensor and no copy needs it."""
    if not _has_gpu():
        return torch.from_numpy(empty(shape, dtype))
    # Torch waits for copies that still read the memory; the pool of `empty` would not.
    return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)


def parts(tensor: Tensor) -> list[Tensor]:
    """Splits a tensor along the first dimension, in the same memory."""
    if tensor.is_pinned():
        return [*tensor.unbind()]
    # Not views, whose sizes torch.compile would tie to the size of the whole.
    return [torch.from_numpy(part) for part in tensor.numpy()]


def to_tensor(array: np.ndarray) -> Tensor:
    """Converts an array to a tensor, without a copy unless there is a GPU."""
    if not _has_gpu():
        return torch.from_numpy(array)
    tensor = empty_tensor(array.shape, array.dtype)
    np.copyto(tensor.numpy(), array)
    return tensor


class SingleIds(KeyedJaggedTensor):
    """Ids of features with at most one id for each sample and without weights.

    They are exchanged in another way (`trainer.plan.sharding`), so in a step either all ranks have them or none has.
    """

    def to(self, device: torch.device, non_blocking: bool = False, dtype: torch.dtype | None = None) -> "SingleIds":
        """Returns the ids on another device; `dtype` is for weights, which these ids lack."""
        return SingleIds(
            keys=self.keys(),
            values=self.values().to(device, non_blocking=non_blocking),
            lengths=self.lengths().to(device, non_blocking=non_blocking),
            stride=self.stride(),
            length_per_key=self.length_per_key(),
        )

    def block(self) -> Tensor:
        """Returns the ids of each feature, `[F, B]`, with NO_ID where there is none."""
        values, shape = self.values(), (len(self.keys()), self.stride())
        if values.numel() == self.lengths().numel():
            return values.view(shape)
        present = self.lengths().view(shape).bool()
        return values.new_full(shape, NO_ID).masked_scatter_(present, values)


def of_block(ids: Tensor, keys: Sequence[str]) -> SingleIds:
    """Makes single ids from a block on any device, `[F, B]`, with NO_ID where there is none."""
    present, samples = ids > NO_ID, ids.shape[1]
    if present.all():
        values, of_features = ids.reshape(-1), len(keys) * [samples]
    else:
        values, of_features = ids[present], present.sum(1).tolist()
    lengths = present.view(-1).int()
    return SingleIds([*keys], values, lengths=lengths, stride=samples, length_per_key=of_features)


def with_values(sparse: KeyedJaggedTensor, values: Tensor) -> KeyedJaggedTensor:
    """Returns a copy of `sparse` with other ids, and the same lengths and weights."""
    return KeyedJaggedTensor(
        keys=sparse.keys(),
        values=values,
        weights=sparse.weights_or_none(),
        lengths=sparse.lengths(),
        stride=sparse.stride(),
        length_per_key=sparse.length_per_key(),
    )


def split_jagged(sparse: KeyedJaggedTensor, parts: int) -> list[KeyedJaggedTensor]:
    """Splits the ids of a batch into equal microbatches of consecutive samples."""
    features, samples = len(sparse.keys()), sparse.stride() // parts
    lengths = sparse.lengths().view(features, parts, samples)
    sizes = lengths.sum(2).flatten().tolist()  # feature by feature, and within a feature part by part
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
    return torch.cat(values.split(sizes)[part::parts]) if sizes else values  # empty without sparse features


@dataclass
class Batch(Pipelineable):
    """The local batch of one step: `B` samples, `D` dense columns, `F` sparse features, `L` labels, `G` groups.

    Attributes:
        dense: Dense features, `[B, D]` float32; a vector has several columns.
        sparse: Ids; the keys are the sparse features in the order of the configuration. If the ids of one feature have
            weights, all ids have weights, and the pooling is a weighted sum.
        labels: Labels, `[B, L]` float32.
        weights: Weight of each sample, `[B]` float32; 0 for padding.
        scale: A scalar that turns the sum of this rank's weighted losses into a mean: the sum times `scale`, averaged
            over the ranks, is the mean over the real samples of the global batch.
        groups: The groups of each sample, `[B, G]` int64.
        log_q: Logarithm of the probability that the sample's item is drawn from the catalogue, `[B]` float32; minus
            infinity if it cannot be drawn, 0 without a catalogue.
        places: Place of each sample in the global batch, lane after lane, `[B]` int64: the same whichever rank has it.

    Negatives from the catalogue follow the samples of each lane (`LaneRows`). A negative has an item but no query. Its
    weight is 0, so that no task and no metric counts it.
    """

    dense: Tensor
    sparse: KeyedJaggedTensor
    labels: Tensor
    weights: Tensor
    scale: Tensor
    groups: Tensor
    log_q: Tensor
    places: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> "Batch":
        """Returns the batch on a device."""
        if device == self.dense.device:
            return self
        return Batch(
            *(getattr(self, field.name).to(device=device, non_blocking=non_blocking) for field in fields(self))
        )

    def record_stream(self, stream: torch.Stream) -> None:
        """Notes for the allocator that another stream uses this batch."""
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
    """Converts the rows of a step to a batch."""
    return to_batches([rows], config, [scale])[0]


def to_batches(
    lanes: Sequence[Rows],
    config: DataConfig,
    scales: Sequence[float],
    log_q: np.ndarray | None = None,
    places: np.ndarray | int = 0,
) -> list[Batch]:
    """Converts the rows of some steps to a batch for each step, in which the lanes follow one another.

    Args:
        lanes: The rows of each lane, step after step; `R` rows in all. Bags are allowed for a single step only.
        config: The columns.
        scales: The scale of each step.
        log_q: `log_q` of a single step, `[R]`; None without a catalogue.
        places: `places` of a single step, `[R]`; or the rank whose samples follow those of lower ranks.
    """
    steps, split = len(scales), config.dense_width
    dense = _by_row([rows.numbers[:split] for rows in lanes], steps)
    labels = _by_row([rows.numbers[split:-1] for rows in lanes], steps)
    weights = _by_row([rows.numbers[-1:] for rows in lanes], steps)
    groups = _by_row([rows.groups for rows in lanes], steps)
    (ids, has_gaps), bags = _by_step([rows.ids for rows in lanes], steps), join_bags([rows.bags for rows in lanes])
    of_steps = to_tensor(np.array(scales, np.float32))
    return [
        Batch(
            dense=dense[step],
            sparse=_to_jagged(ids[step], has_gaps, bags, config),
            labels=labels[step],
            weights=weights[step].view(-1),
            scale=of_steps[step],
            groups=groups[step],
            log_q=_constant(0.0, len(weights[step]), np.float32) if log_q is None else to_tensor(log_q),
            places=_following(places, len(weights[step])) if isinstance(places, int) else to_tensor(places),
        )
        for step in range(steps)
    ]


def _by_row(blocks: Sequence[np.ndarray], steps: int) -> list[Tensor]:
    """Regroups the lanes' blocks of columns, `[C, steps * R]` each, to `[lanes * R, C]` for each step."""
    columns, rows = len(blocks[0]), blocks[0].shape[1] // steps
    joined = empty_tensor((steps, len(blocks), rows, columns), blocks[0].dtype)
    target = joined.numpy()
    for lane, block in enumerate(blocks if columns else ()):
        # Joined and transposed in a single pass. A transposed view would be transposed again by each user.
        target[:, lane] = block.reshape(columns, steps, rows).transpose(1, 2, 0)
    return parts(joined.view(steps, len(blocks) * rows, columns))


def _by_step(blocks: Sequence[np.ndarray], steps: int) -> tuple[list[Tensor], bool]:
    """Regroups the lanes' ids, `[C, steps * R]` each, to `[C, lanes * R]` for each step; also finds if any is NO_ID."""
    columns, rows = len(blocks[0]), blocks[0].shape[1] // steps
    joined = empty_tensor((steps, columns, len(blocks), rows), blocks[0].dtype)
    target, has_gaps = joined.numpy(), False
    for lane, block in enumerate(blocks):
        has_gaps = has_gaps or block.min(initial=0) == NO_ID  # the copy then finds the block in the cache
        target[:, :, lane] = block.reshape(columns, steps, rows).transpose(1, 0, 2)
    return parts(joined.view(steps, columns, len(blocks) * rows)), has_gaps


def _to_jagged(
    ids: Tensor, has_gaps: bool, bags: dict[str, pa.LargeListArray], config: DataConfig
) -> KeyedJaggedTensor:
    """Returns the ids feature by feature; ids and lengths are int32, which halves the bytes that ranks exchange."""
    # Most data has only single ids. The first two cases serve it without a loop over features; without nulls, a block
    # of single ids already has TorchRec's layout.
    rows, offsets = ids.numpy(), None
    if not bags and not has_gaps:
        values, lengths, of_features = ids.view(-1), _constant(1, rows.size, np.int32), len(rows) * [rows.shape[1]]
        offsets = _following(0, rows.size + 1)  # int64, as kernels take them, which saves 30 us of a step of 1.9 ms
    elif not bags:
        present = (rows > NO_ID).reshape(-1)
        places = np.flatnonzero(present)  # with `take`, faster than indexing by `present`
        values, lengths = empty_tensor(places.shape, rows.dtype), to_tensor(present.astype(np.int32))
        take(rows.reshape(-1), places, values.numpy())
        of_features = [int(np.count_nonzero(of_feature)) for of_feature in present.reshape(rows.shape)]
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
        offsets=offsets,
        stride=rows.shape[1],
        # Counted here, because TorchRec would count on the device and wait for a GPU at every step.
        length_per_key=of_features,
    )


@lru_cache(maxsize=4)
def _constant(value: float, size: int, dtype: type[np.number]) -> Tensor:
    """Returns a constant tensor that batches of a size share, such as the lengths of single ids. Never write to it."""
    return to_tensor(np.full(size, value, dtype))


@lru_cache(maxsize=8)
def _following(rank: int, size: int) -> Tensor:
    """Returns the places of a rank's samples, as many as every other rank has. Never write to it."""
    return to_tensor(np.arange(rank * size, (rank + 1) * size))


def features_only(config: DataConfig, names: Collection[str] | None = None) -> DataConfig:
    """Returns the configuration of a data set with the features only: no labels, weights and groups.

    Args:
        config: The model's training data.
        names: The features. Unset: all.
    """
    kept = {
        kind: {name: feature for name, feature in getattr(config, kind).items() if names is None or name in names}
        for kind in ("dense", "sparse")
    }
    nothing = {"labels": [], "numeric_labels": [], "classes": {}, "groups": [], "weight": None}
    defaults = {"catalogue": CatalogueConfig(), "balance": BalanceConfig(), "even_steps": EvenStepsConfig()}
    return config.model_copy(update=kept | nothing | defaults)


def batches_of_share(rows: Rows, data: DataConfig, rank: int, world_size: int, size: int) -> Iterator[Batch]:
    """Yields a rank's share of rows that all ranks have, in batches of `size` rows; all ranks get equally many.

    Shares follow one another in the order of the ranks.

    Args:
        rows: The rows, and at the end one that fills the last batches.
        data: Their columns.
        rank: The rank.
        world_size: Number of ranks.
        size: Rows of a batch.
    """
    last = len(rows) - 1
    share = -(-last // world_size)
    for start in range(0, share, size):
        place = np.arange(start, start + size)
        yield to_batch(rows.take(np.where(place < share, np.minimum(rank * share + place, last), last)), data, 0.0)
