"""The features as matrices: sparse and standardised for linear models, dense and encoded for trees."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow.compute as pc
from scipy import sparse
from sklearn.preprocessing import TargetEncoder

from torchx_recsys.apps.baselines.rows import Table
from trainer.batches.rows import NO_ID
from trainer.rules.id_lists import ids_in, weights_of

Target = Literal["binary", "continuous", "multiclass"]
CATEGORIES = 250  # more ids than this are encoded by their labels: trees take 255 categories
FREQUENT = 32  # ids of a list that trees get a column for


@dataclass(frozen=True)
class IdList:
    """The ids of a feature in all rows.

    Attributes:
        row: The row of each id, `[N]`.
        ids: The ids, `[N]`.
        weights: Their weights, `[N]`.
        lengths: Ids of each row, `[R]`.
    """

    row: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    lengths: np.ndarray


def ids_of(table: Table, name: str) -> IdList:
    """Returns the ids of a feature, single or in lists."""
    if name in table.single:
        ids = table.ids(name)
        there = ids > NO_ID
        return IdList(np.flatnonzero(there), ids[there], np.ones(int(there.sum())), there.astype(np.int64))
    bag = table.bag(name)
    lengths = pc.list_value_length(bag).to_numpy(zero_copy_only=False)  # pyrefly: ignore[missing-attribute]
    ids = ids_in(bag).to_numpy(zero_copy_only=False)
    weights = weights_of({name: bag}).get(name, np.ones(len(ids)))
    return IdList(np.repeat(np.arange(len(table)), lengths), ids, weights, lengths)


def without_tables(table: Table) -> list[str]:
    """Returns the features of pooling raw that are one number of each row, such as its time."""
    return [name for name, longest in table.data.raw.items() if longest == 1]


def with_tables(table: Table) -> list[str]:
    """Returns the features of ids that are looked up in tables."""
    return [name for name, feature in table.data.sparse.items() if feature.pooling != "raw"]


def numbers(table: Table) -> np.ndarray:
    """Returns all numbers of the rows, `[R, C]` float64: dense features, and raw features of one number."""
    raw = []
    for name in without_tables(table):
        found = ids_of(table, name)
        column = np.zeros(len(table))
        column[found.row] = found.ids
        raw.append(column)
    return np.column_stack([np.empty((len(table), 0)), *table.dense, *raw])


class LinearFeatures:
    """Numbers standardised, ids one-hot, lists multi-hot; ids that the rows to train on lack have no column.

    Args:
        train: The rows to train on.
    """

    def __init__(self, train: Table) -> None:
        values = numbers(train)
        self._mean, self._scale = values.mean(axis=0), values.std(axis=0)
        self._scale[self._scale == 0] = 1
        self._known = {name: np.unique(ids_of(train, name).ids) for name in with_tables(train)}

    def __call__(self, table: Table) -> sparse.csr_matrix:
        """Returns the features, `[R, C]` float64."""
        blocks = [sparse.csr_matrix((numbers(table) - self._mean) / self._scale)]
        blocks += [hot(ids_of(table, name), len(table), known) for name, known in self._known.items()]
        return sparse.csr_matrix(sparse.hstack(blocks))


def hot(found: IdList, rows: int, known: np.ndarray) -> sparse.csr_matrix:
    """Returns ids as a matrix with a column for each known one, `[R, K]`; the weights of equal ids add up."""
    place, there = _places(found.ids, known)
    entries = found.weights[there], (found.row[there], place[there])
    return sparse.csr_matrix(entries, shape=(rows, len(known)), dtype=np.float64)


def _places(ids: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the place of each id among the known ones, and whether it is one of them."""
    if not len(known):
        return np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
    place = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return place, known[place] == ids


class TreeFeatures:
    """Numbers as they are, few ids as categories, many ids as the mean label of each, lists as their frequent ids.

    The mean labels of the rows to train on come from the other rows (`TargetEncoder`), or a row would see its own.

    Args:
        train: The rows to train on.
        labels: Their labels, `[R]`.
        target: What the labels are: binary, continuous or multiclass.
        seed: Seed of the folds of the encoder.

    Attributes:
        matrix: The features of the rows to train on, `[R, C]` float32.
        categories: Which columns are categories, `[C]`.
    """

    def __init__(self, train: Table, labels: np.ndarray, target: Target, seed: int) -> None:
        singles = [name for name in with_tables(train) if name in train.single]
        known = {name: np.unique(train.ids(name)) for name in singles}
        self._few = {name: ids for name, ids in known.items() if len(ids) <= CATEGORIES}
        self._many = {name: ids for name, ids in known.items() if len(ids) > CATEGORIES}
        self._lists = {name: _frequent(train, name) for name in with_tables(train) if name not in singles}
        self._encoder: Any = None
        encoded = np.empty((len(train), 0))
        if self._many:
            self._encoder = TargetEncoder(target_type=target, random_state=seed)
            encoded = self._encoder.fit_transform(self._raw(train), labels)
        self._counts = {name: np.bincount(_places(train.ids(name), ids)[0]) for name, ids in self._many.items()}
        self.matrix = self._joined(train, encoded)
        self.categories = [place < len(self._few) for place in range(self.matrix.shape[1])]

    def __call__(self, table: Table) -> np.ndarray:
        """Returns the features of other rows, `[R, C]` float32."""
        encoded = self._encoder.transform(self._raw(table)) if self._encoder else np.empty((len(table), 0))
        return self._joined(table, encoded)

    def _raw(self, table: Table) -> np.ndarray:
        return np.column_stack([table.ids(name) for name in self._many])

    def _joined(self, table: Table, encoded: np.ndarray) -> np.ndarray:
        columns: list[np.ndarray] = []
        for name, known in self._few.items():
            place, there = _places(table.ids(name), known)
            columns.append(np.where(there, place, np.nan))
        columns += [numbers(table), encoded]
        for name, known in self._many.items():
            place, there = _places(table.ids(name), known)
            columns.append(np.where(there, self._counts[name][place], 0))
        for name, known in self._lists.items():
            found = ids_of(table, name)
            columns += [found.lengths, hot(found, len(table), known).toarray()]
        return np.column_stack(columns).astype(np.float32)


def _frequent(train: Table, name: str) -> np.ndarray:
    """Returns the most frequent ids of a list, sorted."""
    ids, counts = np.unique(ids_of(train, name).ids, return_counts=True)
    return np.sort(ids[np.argsort(-counts, kind="stable")[:FREQUENT]])
