"""One Parquet row group to rows, checked: what leaves this file can be trained on."""

import hashlib
from collections.abc import Callable, Iterable, Iterator

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainer.data.files import first_line, is_list, is_string
from trainer.data.rows import NO_ID, Bags, Rows, empty, offsets_of
from trainer.data.schema import DataConfig, DenseFeature, SparseFeature

TRANSFORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "none": lambda x: x,
    "log1p": np.log1p,
    "log3": lambda x: np.log(x + 3),
}


class RowGroupReader:
    """Reads row groups and keeps each file's footer.

    Args:
        columns: The columns to read.
    """

    def __init__(self, columns: list[str]) -> None:
        self._columns = columns
        self._footers: dict[str, pq.FileMetaData] = {}

    def read(self, url: str, index: int) -> pa.Table:
        """Reads one row group.

        Raises:
            ValueError: The file is gone or damaged.
        """
        fs, path = fsspec.core.url_to_fs(url)
        try:
            with pq.ParquetFile(path, filesystem=fs, metadata=self._footers.get(url)) as file:
                self._footers.setdefault(url, file.metadata)
                return file.read_row_group(index, self._columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(f"{url}, row group {index}: cannot be read, is it whole? ({first_line(error)})") from error


def decode(table: pa.Table, config: DataConfig, order: np.ndarray | None = None) -> Rows:
    """Turns a table into rows.

    Column by column, so that what is between table and rows stays in the cache.

    Args:
        table: The columns.
        config: What to do with them.
        order: The position of each row in the table, `[R]`. Unset: as in the table.

    Raises:
        ValueError: A value is not allowed; the message names the row, the column and the value.
    """
    rows = table.num_rows
    lists = [name for name in config.sparse if is_list(table.schema.field(name).type)]
    single = [name for name in config.sparse if name not in lists]
    bags = {name: _bags(name, _whole(table, name), config.sparse[name]) for name in lists}
    ids = (_ids(name, _whole(table, name), config.sparse[name]) for name in single)
    return Rows(
        _stack(_numbers(table, config), (len(config.dense) + len(config.labels) + 1, rows), np.float32, order),
        _stack(ids, (len(single), rows), np.int32, order),
        bags if order is None else {name: bag.take(order) for name, bag in bags.items()},
    )


def _whole(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name).combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column


def _refuse(name: str, values: np.ndarray, wrong: np.ndarray, why: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"row {row}, column '{name}': {values[row]} {why}")


def _stack(columns: Iterable[np.ndarray], shape: tuple[int, int], dtype: type, order: np.ndarray | None) -> np.ndarray:
    """Returns columns as a block, `[C, R]`, its rows in order."""
    block = empty(shape, dtype)
    for target, column in zip(block, columns, strict=True):
        if order is None:
            target[:] = column
        else:
            np.take(column, order, out=target, mode="wrap")  # "raise", the default, would buffer the output
    return block


def _numbers(table: pa.Table, config: DataConfig) -> Iterator[np.ndarray]:
    """Yields dense features, labels and the weight, `[R]` float32 each."""
    for name, feature in config.dense.items():
        yield _dense(name, _whole(table, name), feature)
    for name in config.labels:
        yield _label(name, _whole(table, name))
    yield _weight(config.weight, table)


def _float32(array: pa.Array) -> np.ndarray:
    return pc.cast(array, pa.float32(), safe=False).to_numpy(zero_copy_only=False)


def _dense(name: str, array: pa.Array, feature: DenseFeature) -> np.ndarray:
    array = pc.cast(array, pa.float32(), safe=False)
    raw = (array.fill_null(feature.missing) if array.null_count else array).to_numpy(zero_copy_only=False)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        values = TRANSFORMS[feature.transform](raw)
        if (feature.mean, feature.std) != (0.0, 1.0):
            values = (values - np.float32(feature.mean)) / np.float32(feature.std)
        good = np.isfinite(values.sum())  # one pass over the good case; the mask below only names the bad value
    if not good:
        _refuse(name, raw, ~np.isfinite(values), f"has no finite value under the transform '{feature.transform}'")
    return values


def _label(name: str, array: pa.Array) -> np.ndarray:
    _refuse_nulls(name, array, "a label")
    values = _float32(array)
    _refuse(name, values, ~((values >= 0) & (values <= 1)), "is not a label; labels are in [0, 1]")
    return values


def _weight(name: str | None, table: pa.Table) -> np.ndarray:
    if name is None:
        return np.ones(table.num_rows, np.float32)
    array = _whole(table, name)
    _refuse_nulls(name, array, "a weight")
    values = _float32(array)
    _refuse(name, values, ~(np.isfinite(values) & (values >= 0)), "is not a weight; weights are finite and at least 0")
    return values


def _refuse_nulls(name: str, array: pa.Array, what: str) -> None:
    if array.null_count:
        row = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
        raise ValueError(f"row {row}, column '{name}': null is not allowed for {what}; fill it or leave the row out")


def _ids(name: str, array: pa.Array, feature: SparseFeature) -> np.ndarray:
    """Returns the id of each row, `[R]` int32, NO_ID for a null."""
    if not array.null_count:
        return _into_table(name, array, feature)
    ids = np.full(len(array), NO_ID, np.int32)
    ids[array.is_valid().to_numpy(zero_copy_only=False)] = _into_table(name, array.drop_null(), feature)
    return ids


def _bags(name: str, array: pa.Array, feature: SparseFeature) -> Bags:
    """Returns the ids of each row; a null list is empty, a null in a list is left out."""
    lengths = pc.list_value_length(array)  # pyrefly: ignore[missing-attribute]
    offsets = offsets_of(lengths.fill_null(0).to_numpy(zero_copy_only=False))
    array = array.flatten()
    if array.null_count:
        offsets = offsets_of(array.is_valid().to_numpy(zero_copy_only=False))[offsets]
        array = array.drop_null()
    return Bags(_into_table(name, array, feature), offsets)


def _into_table(name: str, array: pa.Array, feature: SparseFeature) -> np.ndarray:
    """Applies the feature's rule for ids: what comes back is int32 in [0, rows)."""
    ids = _hash_text(array) if is_string(array.type) else array.to_numpy(zero_copy_only=False)
    if feature.ids == "hash":
        return (mix(ids) % np.uint64(feature.rows)).astype(np.int32)
    limit = min(feature.rows, np.iinfo(ids.dtype).max + 1)
    if len(ids) and ids.view(f"u{ids.itemsize}").max() >= limit:  # one pass: unsigned, a negative id is a huge one
        if feature.ids == "error":
            _refuse_id(name, ids, feature.rows)
        ids = (ids if ids.dtype == np.uint64 else ids.astype(np.int64)) % feature.rows
    return ids.astype(np.int32, copy=False)


def _refuse_id(name: str, ids: np.ndarray, rows: int) -> None:
    wrong = ids[(ids < 0) | (ids >= rows)][0]
    raise ValueError(
        f"column '{name}': id {wrong} is outside [0, {rows}); "
        f"raise data.sparse.{name}.rows or set data.sparse.{name}.ids to 'modulo' or 'hash'"
    )


def mix(ids: np.ndarray) -> np.ndarray:
    """Spreads ids over all 64 bits: the finaliser of splitmix64 (Steele, Lea, Flood: OOPSLA 2014), `[N]` to `[N]`."""
    x = ids.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _hash_text(array: pa.Array) -> np.ndarray:
    """Hashes each distinct string once (BLAKE2b, 64 bits), so that ids are the same on every machine and for ever."""
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    digests = (hashlib.blake2b(str(text).encode(), digest_size=8).digest() for text in coded.dictionary.to_pylist())
    hashes = np.frombuffer(b"".join(digests), np.int64)
    return hashes[coded.indices.to_numpy(zero_copy_only=False)]
