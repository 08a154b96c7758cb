"""Duplicate rows: hashes of a part of all rows, chosen by the hash of a few columns, so that copies stay together."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from apps.check_data.kinds import Kind, computed
from trainer.data.hashing import mix
from trainer.data.plain_types import plain_array

KEPT = 100_000  # hashes, about: more rows are sampled, the same ones wherever they occur
KEYS = 2
LOOKED_AT = 4000
NULL = np.uint64(0x9D39247E33776D41)  # of no number that is likely


def key_columns(columns: Mapping[str, pa.ChunkedArray], kinds: Mapping[str, Kind]) -> list[str]:
    """Returns the columns by which rows are chosen: those of most different values, so that the choice is even."""
    single = [name for name in columns if kinds[name] in ("integer", "number", "time")] or [*columns]
    first = {name: computed(plain_array(columns[name][:LOOKED_AT]), kinds[name]) for name in single}
    distinct = {name: len(np.unique(bits_of(values, kinds[name]))) for name, values in first.items()}
    best = sorted(single, key=lambda name: -distinct[name])
    # One column that hardly repeats spreads rows well enough by itself.
    return best[: 1 if distinct[best[0]] > len(columns[best[0]][:LOOKED_AT]) / 2 else KEYS]


def sampling_mask(rows: int) -> np.uint64:
    """Returns the bits that are zero in the hashes of chosen rows, of so many rows in all."""
    return np.uint64(2 ** max(0, int(np.ceil(np.log2(max(1, rows) / KEPT)))) - 1)


def chosen_rows(keys: Sequence[np.ndarray], mask: np.uint64) -> np.ndarray:
    """Returns the places of the rows whose hash is chosen, from the bits of key columns, `[R]` each."""
    return np.flatnonzero(hash_rows(keys) & mask == 0)


def hash_rows(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Returns a hash of each row from the bits of its columns, `[R]` each."""
    first, *others = columns
    whole = mix(first)
    for one in others:
        whole = mix(whole ^ one)
    return whole


def bits_of(values: pa.Array, kind: Kind) -> np.ndarray:
    """Returns 64 bits for each value of a type in `kinds.COMPUTED`, `[R]` uint64: equal for equal values.

    Those of numbers are their own, those of others are hashes, which differ from process to process.
    """
    if kind in ("integers", "texts"):
        return _hash_lists(values, kind)
    missing = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
    if kind == "text":
        coded = values.dictionary_encode()
        # Python's own hash is another one in every process, which does not matter here.
        words = np.fromiter(map(hash, [*coded.dictionary.to_pylist(), ""]), np.int64)
        bits = words[coded.indices.fill_null(len(words) - 1).to_numpy()].view(np.uint64)
    else:
        numbers = (values.fill_null(0) if values.null_count else values).to_numpy(zero_copy_only=False)
        bits = (numbers + 0.0 if kind in ("number", "empty") else numbers).view(np.uint64)  # -0.0 is 0.0
    return bits if missing is None else np.where(missing, NULL, bits)


def _hash_lists(values: pa.LargeListArray, kind: Kind) -> np.ndarray:
    """Returns hashes of lists, in which the order of elements counts; null is as an empty one."""
    lengths = values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    elements = bits_of(values.flatten(), "integer" if kind == "integers" else "text")
    starts = np.cumsum(lengths) - lengths
    places = (np.arange(len(elements)) - np.repeat(starts, lengths)).astype(np.uint64)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(mix(mix(elements) ^ mix(places)))])  # wraps around, and back
    return mix(sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64))
