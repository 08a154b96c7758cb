"""Decodes consecutive rows of a row group column by column: transforms the values, and makes `Rows`."""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from itertools import accumulate
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.batches.chunk import (
    Chunk,
    chosen,
    dense_values,
    earlier,
    looked_up,
    single_ids,
    weighted_lists,
    without_own,
)
from trainer.batches.rows import NO_ID, NO_ITEM, Rows, empty_block, id_dtype, take
from trainer.config.data import CatalogueConfig, DataConfig
from trainer.config.features import SparseFeature
from trainer.data.selection import weight_factors
from trainer.rules.base import RefusedId
from trainer.rules.hashing import as_integers, shifted
from trainer.rules.id_lists import (
    kept,
    with_weights,
)
from trainer.rules.plain_types import (
    as_lists,
    is_missing,
    list_lengths,
    offsets_of,
    to_float32,
)
from trainer.rules.registry import id_rule

Item = TypeVar("Item")
Result = TypeVar("Result")
Decoder = Callable[[Chunk], np.ndarray]
"""Makes columns of a chunk: a value for each row, `[R]`, one for all rows, or of vectors `[width, R]`."""


def decode(
    chunk: Chunk,
    config: DataConfig,
    lists: Collection[str],
    order: np.ndarray | None = None,
    pool: ThreadPoolExecutor | None = None,
) -> Rows:
    """Decodes a chunk column by column, so that a column stays in the processor's cache from the file to the rows.

    Args:
        chunk: The rows, `R` of them.
        config: The columns and their rules.
        lists: The sparse features that are lists of ids.
        order: For each row of the result, its position in the chunk, `[R]`. Unset: the order of the chunk.
        pool: The threads that decode columns. Unset: this thread.

    Raises:
        InputError: A value is not allowed. The message names row group, row, column and value.
    """
    single = [name for name in config.sparse if name not in lists]
    dtype = id_dtype(config)

    def bag(name: str) -> pa.LargeListArray:
        found = _bags(name, config.sparse[name], dtype, chunk)
        return found if order is None else found.take(order)

    bags = dict(zip(lists, _each(bag, lists, pool), strict=True))
    hard = _hard_negatives(config.catalogue, chunk)
    return Rows(
        _stack(chunk, _numbers(config), np.float32, order, pool, [len(one) for one in config.dense_columns.values()]),
        _stack(chunk, [partial(_ids, name, config.sparse[name]) for name in single], dtype, order, pool),
        bags,
        _stack(chunk, [partial(_group, name) for name in config.groups], np.int64, order, pool),
        hard if order is None else hard[:, order],
        _stack(chunk, [partial(_cost, name) for name in config.costs], np.float32, order, pool),
    )


def _each(function: Callable[[Item], Result], items: Iterable[Item], pool: ThreadPoolExecutor | None) -> list[Result]:
    """Returns the result for each item; if several fail, raises the error of the first item."""
    if pool is None:
        return [function(item) for item in items]
    calls = [pool.submit(function, item) for item in items]
    wait(calls)  # also after an error: it closes the file, which other threads may still read
    return [call.result() for call in calls]


def _numbers(config: DataConfig) -> list[Decoder]:
    """Returns functions that decode dense features, labels and the weight, float32 each."""
    dense = [partial(dense_values, name, feature) for name, feature in config.dense.items()]
    return [*dense, *(_decoder_of(name, config) for name in config.labels), partial(_weight, config.weight)]


def _decoder_of(label: str, config: DataConfig) -> Decoder:
    if values := config.classes.get(label):
        return partial(_class, label, pa.array(values))
    return partial(_number if label in config.numeric_labels else _label, label)


def _stack(
    chunk: Chunk,
    decoders: list[Decoder],
    dtype: np.typing.DTypeLike,
    order: np.ndarray | None,
    pool: ThreadPoolExecutor | None,
    widths: Sequence[int] = (),
) -> np.ndarray:
    """Decodes columns into a block, `[C, R]`, with the rows in order.

    The first decoders make `widths` columns, all others one each.
    """
    ends = [*accumulate([*widths, *[1] * (len(decoders) - len(widths))])]
    block = empty_block(ends[-1] if ends else 0, len(chunk.rows), dtype)
    words = 2 * order if order is not None and block.dtype == np.int32 else None

    def fill(place: int) -> None:
        target, values = block[ends[place] - 1], decoders[place](chunk)
        if values.ndim == 2:  # whole vectors are put in order, which reads their memory in long runs
            vectors = values.T if order is None else values.T[order]
            np.copyto(block[ends[place] - len(values) : ends[place]], vectors.T)
        elif order is None or values.ndim == 0:
            np.copyto(target, values, casting="unsafe")
        # Each column is shuffled while it is in the cache. Permuting the whole block later would move all data twice.
        elif words is not None and values.dtype == np.int64:
            take(values.view(np.int32), words, target)  # the low words of int64 rows, without a pass to narrow them
        else:
            take(values.astype(dtype, copy=False), order, target)

    _each(fill, range(len(decoders)), pool)
    return block


def _label(name: str, chunk: Chunk) -> np.ndarray:
    values = _numbers_without_null(name, chunk, "a label")
    why = "is not a label; labels are in [0, 1] unless data.numeric_labels names them"
    return chunk.check(name, values, (values >= 0) & (values <= 1), why)


def _number(name: str, chunk: Chunk) -> np.ndarray:
    values = _numbers_without_null(name, chunk, "a label")
    return chunk.check(name, values, np.isfinite(values), "is not a label; labels are finite")


def _class(name: str, classes: pa.Array, chunk: Chunk) -> np.ndarray:
    """Returns the place of each row's value among the classes, `[R]` float32."""
    array = _without_null(name, chunk, chunk.ids(name), "a label")
    places = pc.index_in(array, value_set=classes.cast(array.type))  # pyrefly: ignore[missing-attribute]
    if places.null_count:
        row = places.is_null().index(True).as_py()
        chunk.refuse(f"column '{name}': {array[row].as_py()!r} is not in data.classes.{name}; name it there", row)
    return places.to_numpy(zero_copy_only=False).astype(np.float32)


def _weight(name: str | None, chunk: Chunk) -> np.ndarray:
    factors = weight_factors(chunk.column, chunk.rows)
    if name is None:
        return factors
    values = _numbers_without_null(name, chunk, "a weight")
    good = np.isfinite(values) & (values >= 0)
    return factors * chunk.check(name, values, good, "is not a weight; weights are finite and at least 0")


def _cost(name: str, chunk: Chunk) -> np.ndarray:
    """Returns the cost of each row, `[R]` float32."""
    values = _numbers_without_null(name, chunk, "a cost")
    return chunk.check(name, values, np.isfinite(values) & (values >= 0), "is not a cost; costs are at least 0")


def _numbers_without_null(name: str, chunk: Chunk, what: str) -> np.ndarray:
    array = _without_null(name, chunk, chunk.numbers(name), what)
    return to_float32(array).to_numpy(zero_copy_only=False)


def _without_null(name: str, chunk: Chunk, array: pa.Array, what: str) -> pa.Array:
    if array.null_count:
        row = array.is_null().index(True).as_py()
        chunk.refuse(f"column '{name}': null is not allowed for {what}; fill it or leave the row out", row)
    return array


def _group(name: str, chunk: Chunk) -> np.ndarray:
    """Returns the group of each row, `[R]` int64; strings are hashed."""
    array = _without_null(name, chunk, chunk.ids(name), "a group")
    return as_integers(array).astype(np.int64)


def _hard_negatives(catalogue: CatalogueConfig, chunk: Chunk) -> np.ndarray:
    """Returns the first `H` items of each row's list, `[H, R]` int64, NO_ITEM beyond its end; a null list is empty."""
    if catalogue.hard_negatives is None:
        return np.empty((0, len(chunk.rows)), np.int64)
    lists = as_lists(chunk.ids(catalogue.hard_negatives))
    offsets, values = offsets_of(list_lengths(lists)), lists.flatten()
    if values.null_count:
        chunk.refuse(f"column '{catalogue.hard_negatives}': null is not allowed in a list of items; leave it out")
    items = as_integers(values).astype(np.int64)
    places = offsets[:-1] + np.arange(catalogue.hard)[:, None]
    return np.append(items, NO_ITEM)[np.where(places < offsets[1:], places, len(items))]


def _ids(name: str, feature: SparseFeature, chunk: Chunk) -> np.ndarray:
    """Returns the row in the table of each row's id, `[R]`; NO_ID for a null."""
    array = single_ids(name, feature, chunk)
    if array.null_count and ":" in feature.ids:  # the user's own rule must not see nulls
        rows = np.full(len(array), NO_ID, np.int32)
        rows[~is_missing(array)] = _into_table(name, feature, array.drop_null(), chunk)
        return rows
    ids = _into_table(name, feature, array, chunk)
    if not array.null_count:
        return ids
    wide = ids.astype(np.int64 if feature.ids == "managed" else np.int32, copy=False)
    return wide | -is_missing(array).view(np.int8)  # sets all bits, which is NO_ID; np.where takes three times as long


def _bags(name: str, feature: SparseFeature, dtype: np.dtype, chunk: Chunk) -> pa.LargeListArray:
    """Returns the ids of each row, without later ids and its own, cut to `max_ids`.

    A null list is empty, and a null in a list is dropped. Ids with weights are structs (`weighted_type`).
    """
    column = feature.column or name
    if feature.weights:
        array = weighted_lists(column, feature, chunk)
    else:
        array = looked_up(column, feature, chunk) if feature.lookup else as_lists(chunk.ids(column))
    rules = [rule for rule, is_on in ((earlier, feature.times), (without_own, feature.without)) if is_on]
    if rules:
        lengths = list_lengths(array)
        array = chosen(array, np.logical_and.reduce([rule(column, feature, chunk, lengths) for rule in rules]))
    offsets, array = offsets_of(list_lengths(array)), array.flatten()
    if array.null_count:
        offsets = offsets_of(array.is_valid().to_numpy(zero_copy_only=False))[offsets]
        array = array.drop_null()
    offsets, array = kept(offsets, array, feature)
    raw = array.field("id") if feature.weights else array
    ids = _into_table(name, feature, shifted(raw, feature.offset), chunk, offsets).astype(dtype, copy=False)
    rows = with_weights(pa.array(ids), array.field("weight")) if feature.weights else ids
    return pa.LargeListArray.from_arrays(offsets, rows)


def _into_table(
    name: str, feature: SparseFeature, array: pa.Array, chunk: Chunk, offsets: np.ndarray | None = None
) -> np.ndarray:
    """Turns raw ids into rows of the table by the feature's rule, integers in [0, rows); managed ids keep 63 bits.

    Args:
        name: The feature.
        feature: Its rules.
        array: The ids. A null becomes an arbitrary row.
        chunk: The rows of the ids.
        offsets: Where the ids of each row begin and those of the last row end, `[R + 1]`. Unset: one id per row.
    """
    # Ids are checked here because tables do not check: for an id out of range, TorchRec trains row 0 with a line on
    # stderr, or raises an IndexError that names no column.
    ids = as_integers(array)
    try:
        return id_rule(name, feature).rows_of(ids)
    except RefusedId as refused:
        place = refused.place
        row = place if offsets is None else int(np.searchsorted(offsets, place, side="right")) - 1
        column = feature.column or name
        chunk.refuse(f"column '{column}': id {ids[place]}{_of(feature.offset)} {refused.reason}", row)


def _of(offset: int) -> str:
    return f" (with the offset {offset})" if offset else ""
