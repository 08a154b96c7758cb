"""The splits of published tables, row for row, and what a row may know of its user."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa


def stratified(keys: np.ndarray, share: float, seed: int = 42) -> np.ndarray:
    """Returns which rows are of train, as `python_stratified_split` of the recommenders project divides them.

    Args:
        keys: The user or the item of each row, each of which has its share of rows in train.
        share: The share.
        seed: Of numpy's global generator.
    """
    order = np.lexsort((np.random.RandomState(seed).rand(len(keys)), keys))
    starts = np.searchsorted(keys[order], keys[order])
    counts = np.searchsorted(keys[order], keys[order], side="right") - starts
    is_train = np.empty(len(keys), bool)
    is_train[order] = np.arange(len(keys)) - starts + 1 <= np.round(share * counts)
    return is_train


def folds(rows: int, parts: int = 5, seed: int = 0) -> Iterator[np.ndarray]:
    """Yields the rows to test on of each fold, as Surprise's `KFold` divides them."""
    order = np.arange(rows)
    np.random.RandomState(seed).shuffle(order)
    yield from np.array_split(order, parts)


def random_shares(rows: int, shares: tuple[float, ...], seed: int = 0) -> list[np.ndarray]:
    """Returns the rows of each share, by chance; the last one has the rest."""
    order = np.random.default_rng(seed).permutation(rows)
    return np.split(order, [int(rows * end) for end in np.cumsum(shares)[:-1]])


def others(groups: np.ndarray, values: dict[str, np.ndarray], asked: np.ndarray | None = None) -> dict[str, pa.Array]:
    """Returns lists of what the other rows of the same group have.

    Args:
        groups: The group of each row, such as its user.
        values: Columns to list, by name.
        asked: Groups to list all rows of. Unset: for each row those of its group, without itself.
    """
    order = np.argsort(groups, kind="stable")
    wanted = groups if asked is None else asked
    starts = np.searchsorted(groups[order], wanted)
    ends = np.searchsorted(groups[order], wanted, side="right")
    chosen = [order[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    if asked is None:
        chosen = [rows[rows != own] for own, rows in enumerate(chosen)]
    offsets = np.cumsum([0, *map(len, chosen)], dtype=np.int32)
    rows = np.concatenate(chosen)
    return {name: pa.ListArray.from_arrays(offsets, pa.array(column[rows])) for name, column in values.items()}
