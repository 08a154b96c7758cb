"""Decodes and checks columns: chunks of row groups in, rows that can be trained on out."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config.catalogue import CatalogueConfig
from trainer.config.data import DataConfig, DenseFeature, SparseFeature
from trainer.core.errors import InputError
from trainer.data.buffers import empty
from trainer.data.dataset import is_string
from trainer.data.hashing import hash_text, mix, modulo
from trainer.data.readers.base import Column
from trainer.data.rows import NO_ID, NO_ITEM, Rows, id_dtype
from trainer.data.vocabulary import open_vocabulary

TRANSFORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "log1p": np.log1p,
    "log3": lambda x: np.log(x + 3),
}


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of a row group.

    Attributes:
        column: Returns a column of the row group.
        rows: Which of its rows.
        where: Beginning of error messages, which names the row group.
    """

    column: Column
    rows: range
    where: str = ""

    def array(self, name: str) -> pa.Array:
        """Returns a column of these rows."""
        column = self.column(name).slice(self.rows.start, len(self.rows))
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    def refuse(self, message: str, row: int | None = None) -> NoReturn:
        """Raises InputError for a value; its row, if known, is counted from the beginning of the chunk."""
        place = "" if row is None else f"row {self.rows.start + row}, "
        raise InputError(f"{self.where}{place}{message}")


Decoder = Callable[[Chunk], np.ndarray]


def decode(
    chunks: Sequence[Chunk], config: DataConfig, lists: Collection[str], order: np.ndarray | None = None
) -> Rows:
    """Decodes chunks, column by column, so that a column stays in the cache from file to rows.

    Args:
        chunks: The rows, `R` in all.
        config: The columns and their rules.
        lists: The sparse features that are lists of ids.
        order: The position of each row in the chunks, `[R]`. Unset: as in the chunks.

    Raises:
        InputError: A value is not allowed; the message names row group, row, column and value.
    """
    single = [name for name in config.sparse if name not in lists]
    dtype = id_dtype(config)
    bags = {
        name: pa.concat_arrays([_bags(name, config.sparse[name], dtype, chunk) for chunk in chunks]) for name in lists
    }
    hard = np.concatenate([_hard_negatives(config.catalogue, chunk) for chunk in chunks], axis=1)
    return Rows(
        _stack(chunks, _numbers(config), np.float32, order),
        _stack(chunks, [partial(_ids, name, config.sparse[name]) for name in single], dtype, order),
        bags if order is None else {name: bag.take(order) for name, bag in bags.items()},
        _stack(chunks, [partial(_group, name) for name in config.groups], np.int64, order),
        hard if order is None else hard[:, order],
    )


def _numbers(config: DataConfig) -> list[Decoder]:
    """Returns the decoders of dense features, labels and the weight, to `[R]` float32 each."""
    dense = [partial(_dense, name, feature) for name, feature in config.dense.items()]
    labels = [partial(_number if name in config.numeric_labels else _label, name) for name in config.labels]
    return [*dense, *labels, partial(_weight, config.weight)]


def _stack(
    chunks: Sequence[Chunk], decoders: list[Decoder], dtype: np.typing.DTypeLike, order: np.ndarray | None
) -> np.ndarray:
    """Returns columns as a block, `[C, R]`, its rows in order."""
    rows = sum(len(chunk.rows) for chunk in chunks)
    block, column = empty((len(decoders), rows), dtype), np.empty(rows, dtype)
    for target, decoder in zip(block, decoders, strict=True):
        # Shuffled while it is in the cache; to permute the whole block later would move everything twice.
        np.concatenate([decoder(chunk) for chunk in chunks], out=target if order is None else column, casting="unsafe")
        if order is not None:
            np.take(column, order, out=target, mode="wrap")  # "raise", the default, would buffer the output
    return block


def _checked(chunk: Chunk, name: str, values: np.ndarray, good: np.ndarray, why: str) -> np.ndarray:
    if not good.all():
        row = int(good.argmin())
        chunk.refuse(f"column '{name}': {values[row]} {why}", row)
    return values


def _dense(name: str, feature: DenseFeature, chunk: Chunk) -> np.ndarray:
    array = pc.cast(chunk.array(name), pa.float32(), safe=False)
    raw = (array.fill_null(feature.missing) if array.null_count else array).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = TRANSFORMS[feature.transform](raw)
        if (feature.mean, feature.std) != (0.0, 1.0):
            values = (values - np.float32(feature.mean)) / np.float32(feature.std)
        good = np.isfinite(values.sum())  # one pass over the good case; the mask below only names the bad value
    if not good:
        why = f"has no finite value under the transform '{feature.transform}'"
        _checked(chunk, name, raw, np.isfinite(values), why)
    return values


def _label(name: str, chunk: Chunk) -> np.ndarray:
    values = _numbers_without_null(name, chunk, "a label")
    why = "is not a label; labels are in [0, 1] unless data.numeric_labels names them"
    return _checked(chunk, name, values, (values >= 0) & (values <= 1), why)


def _number(name: str, chunk: Chunk) -> np.ndarray:
    values = _numbers_without_null(name, chunk, "a label")
    return _checked(chunk, name, values, np.isfinite(values), "is not a label; labels are finite")


def _weight(name: str | None, chunk: Chunk) -> np.ndarray:
    if name is None:
        return np.ones(len(chunk.rows), np.float32)
    values = _numbers_without_null(name, chunk, "a weight")
    good = np.isfinite(values) & (values >= 0)
    return _checked(chunk, name, values, good, "is not a weight; weights are finite and at least 0")


def _numbers_without_null(name: str, chunk: Chunk, what: str) -> np.ndarray:
    array = _without_null(name, chunk, what)
    return pc.cast(array, pa.float32(), safe=False).to_numpy(zero_copy_only=False)


def _without_null(name: str, chunk: Chunk, what: str) -> pa.Array:
    array = chunk.array(name)
    if array.null_count:
        row = array.is_null().index(True).as_py()
        chunk.refuse(f"column '{name}': null is not allowed for {what}; fill it or leave the row out", row)
    return array


def _group(name: str, chunk: Chunk) -> np.ndarray:
    """Returns the group of each row, `[R]` int64, a string's by its hash."""
    array = _without_null(name, chunk, "a group")
    return hash_text(array) if is_string(array.type) else array.to_numpy(zero_copy_only=False).astype(np.int64)


def _hard_negatives(catalogue: CatalogueConfig, chunk: Chunk) -> np.ndarray:
    """Returns the first items of each row's list, `[H, R]` int64, NO_ITEM where it is shorter; a null list is empty."""
    if catalogue.hard_negatives is None:
        return np.empty((0, len(chunk.rows)), np.int64)
    lists = chunk.array(catalogue.hard_negatives)
    lengths = pc.list_value_length(lists)  # pyrefly: ignore[missing-attribute]
    offsets, values = _offsets(lengths.fill_null(0)), lists.flatten()
    if values.null_count:
        chunk.refuse(f"column '{catalogue.hard_negatives}': null is not allowed in a list of items; leave it out")
    items = hash_text(values) if is_string(values.type) else values.to_numpy(zero_copy_only=False).astype(np.int64)
    places = offsets[:-1] + np.arange(catalogue.hard)[:, None]
    return np.append(items, NO_ITEM)[np.where(places < offsets[1:], places, len(items))]


def _ids(name: str, feature: SparseFeature, chunk: Chunk) -> np.ndarray:
    """Returns the id of each row, `[R]`, NO_ID for a null."""
    array = chunk.array(name)
    if not array.null_count:
        return _into_table(name, feature, array, chunk)
    missing = array.is_null().to_numpy(zero_copy_only=False)
    filled = array.fill_null("" if is_string(array.type) else 0)  # allowed in any table, and replaced below
    dtype = np.int64 if feature.ids == "managed" else np.int32
    return np.where(missing, dtype(NO_ID), _into_table(name, feature, filled, chunk).astype(dtype))


def _bags(name: str, feature: SparseFeature, dtype: np.dtype, chunk: Chunk) -> pa.LargeListArray:
    """Returns the ids of each row, of a sequence its last ones; a null list is empty, a null in a list is left out."""
    array = chunk.array(name)
    lengths = pc.list_value_length(array)  # pyrefly: ignore[missing-attribute]
    offsets = _offsets(lengths.fill_null(0))
    array = array.flatten()
    if array.null_count:
        offsets = _offsets(array.is_valid())[offsets]
        array = array.drop_null()
    if feature.max_ids:
        offsets, array = _last(offsets, array, feature.max_ids)
    ids = _into_table(name, feature, array, chunk).astype(dtype, copy=False)
    return pa.LargeListArray.from_arrays(offsets, ids)


def _offsets(lengths: pa.Array) -> np.ndarray:
    """Returns where each list begins, and where the last one ends, `[R + 1]`."""
    return np.concatenate([[0], np.cumsum(lengths.to_numpy(zero_copy_only=False))])


def _last(offsets: np.ndarray, array: pa.Array, length: int) -> tuple[np.ndarray, pa.Array]:
    """Returns the lists without all but their last `length` elements: where each begins, and the elements."""
    lengths = np.diff(offsets)
    if not len(lengths) or lengths.max() <= length:
        return offsets, array
    places = np.arange(len(array)) - np.repeat(offsets[1:], lengths)  # from the end of the list
    kept = np.minimum(lengths, length)
    return np.concatenate([[0], np.cumsum(kept)]), array.filter(pa.array(places >= -length))


def _into_table(name: str, feature: SparseFeature, array: pa.Array, chunk: Chunk) -> np.ndarray:
    """Returns the chunk's ids in [0, rows), of any integer type, by the feature's rule; managed ones as 63 bits."""
    # Checked here because the tables do not: TorchRec trains on row 0 instead of an id out of range, with one line on
    # stderr, or ends with an IndexError that names no column.
    ids = hash_text(array) if is_string(array.type) else array.to_numpy(zero_copy_only=False)
    if feature.ids == "vocabulary":
        return open_vocabulary(name, feature).rows_of(ids.astype(np.int64))
    if feature.ids == "managed":
        return ids.astype(np.int64) & np.iinfo(np.int64).max  # rows come later; below 0 is no id
    if feature.ids == "hash":
        return modulo(mix(ids), np.uint64(feature.rows))
    limit = min(feature.rows, np.iinfo(ids.dtype).max + 1)
    if len(ids) and ids.view(f"u{ids.itemsize}").max() >= limit:  # one pass: unsigned, a negative id is a huge one
        if feature.ids == "error":
            wrong = ids[(ids < 0) | (ids >= feature.rows)][0]
            chunk.refuse(
                f"column '{name}': id {wrong} is outside [0, {feature.rows}); "
                f"raise data.sparse.{name}.rows or set data.sparse.{name}.ids to 'modulo' or 'hash'"
            )
        wide = ids if ids.dtype == np.uint64 else ids.astype(np.int64)
        return modulo(wide, wide.dtype.type(feature.rows))
    return ids
