"""Weights of ids: read from a column beside that of the ids, and made such that a weighted sum is the pooling."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature
from trainer.core.console import plural
from trainer.data.chunk import Chunk
from trainer.rules.plain_types import as_lists, is_list, to_numbers


def weighted_type(ids: pa.DataType) -> pa.StructType:
    """Returns the type of ids with weights, for the type of the ids."""
    return pa.struct([("id", ids), ("weight", pa.float32())])


def with_weights(ids: pa.Array, weights: pa.Array) -> pa.StructArray:
    """Returns ids with their weights, `[N]`, null where the id is."""
    mask = ids.is_null() if ids.null_count else None
    return pa.StructArray.from_arrays([ids, weights], fields=[*weighted_type(ids.type)], mask=mask)


def weighted_lists(column: str, feature: SparseFeature, chunk: Chunk) -> pa.LargeListArray:
    """Returns the ids of each row with their weights, `[R]` lists; a single id as a list of one.

    Raises:
        InputError: An id has no weight, or one that is not allowed.
    """
    ids, weights = chunk.ids(column), chunk.array(str(feature.weights))
    if is_list(ids.type) or is_list(weights.type):
        ids, weights = as_lists(ids), as_lists(weights)
    else:
        ids, weights = _one_each(ids), _one_each(weights)
    lengths, found = _lengths(ids), _lengths(weights)
    if not (good := lengths == found).all():
        row = int(good.argmin())
        chunk.refuse(
            f"column '{feature.weights}': {plural(found[row], 'weight')} for "
            f"{plural(lengths[row], 'id')} of '{column}'; each id needs one",
            row,
        )
    offsets, ids = np.concatenate([[0], np.cumsum(lengths)]), ids.flatten()
    weights = pc.cast(to_numbers(weights.flatten()), pa.float32(), safe=False)
    _check(ids, weights, offsets, feature, chunk)
    return pa.LargeListArray.from_arrays(offsets, with_weights(ids, weights))


def _one_each(array: pa.Array) -> pa.LargeListArray:
    return pa.LargeListArray.from_arrays(np.arange(len(array) + 1), array)


def _lengths(lists: pa.Array) -> np.ndarray:
    """Returns the lengths of lists, `[R]`; a null one has none."""
    lengths = pc.list_value_length(lists)  # pyrefly: ignore[missing-attribute]
    return lengths.fill_null(0).to_numpy(zero_copy_only=False)


def _check(ids: pa.Array, weights: pa.Array, offsets: np.ndarray, feature: SparseFeature, chunk: Chunk) -> None:
    values = weights.to_numpy(zero_copy_only=False)  # null as NaN
    good = np.isfinite(values) & ((values >= 0) | (feature.pooling != "mean"))
    if ids.null_count:  # which is left out, and its weight with it
        good |= ids.is_null().to_numpy(zero_copy_only=False)
    if not good.all():
        place = int(good.argmin())
        value = "null" if weights[place].as_py() is None else values[place]
        allowed = "finite and, for a mean, at least 0" if feature.pooling == "mean" else "finite"
        chunk.refuse(
            f"column '{feature.weights}': {value} is not a weight; weights of ids are {allowed}",
            int(np.searchsorted(offsets, place, side="right")) - 1,
        )


def ids_in(bags: pa.LargeListArray) -> pa.Array:
    """Returns the ids in lists, `[N]`, which may have weights."""
    found = bags.flatten()
    return found.field("id") if pa.types.is_struct(found.type) else found


def weights_of(bags: Mapping[str, pa.LargeListArray]) -> dict[str, np.ndarray]:
    """Returns the weights of the ids in those lists that have weights, `[N]` float32 each."""
    found = {name: one.flatten() for name, one in bags.items() if pa.types.is_struct(one.type.value_type)}
    return {name: one.field("weight").to_numpy() for name, one in found.items()}


def pooling_weights(config: DataConfig, lengths: np.ndarray, weights: Mapping[str, np.ndarray]) -> Tensor:
    """Returns the weights by which a weighted sum is the pooling of every feature, `[N]` float32.

    FBGEMM leaves the division of a mean out on a CPU where ids have weights, and torch refuses it.

    Args:
        config: The features.
        lengths: Ids of each feature in each row, `[F * R]`.
        weights: Weights of the ids of those features that have some, `[N]` float32 each.
    """
    of_features = lengths.reshape(len(config.sparse), -1)
    return torch.from_numpy(
        np.concatenate(
            [
                _pooling_weights(feature, ids, weights.get(name))
                for (name, feature), ids in zip(config.sparse.items(), of_features, strict=True)
            ]
        )
    )


def _pooling_weights(feature: SparseFeature, lengths: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    found = np.ones(lengths.sum(), np.float32) if weights is None else weights
    if feature.pooling != "mean":
        return found
    row_of = np.repeat(np.arange(len(lengths)), lengths)
    totals = np.bincount(row_of, found, minlength=len(lengths))
    # Ids that all weigh 0 are as no ids.
    return (found / np.where(totals > 0, totals, 1)[row_of]).astype(np.float32)
