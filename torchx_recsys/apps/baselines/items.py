"""The items of a catalogue by their places, and the items that each row's query has had before."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import sparse

from torchx_recsys.apps.baselines.features import ids_of
from torchx_recsys.apps.baselines.rows import Table
from trainer.batches.catalogue import Catalogue, read_catalogue
from trainer.batches.rows import NO_ID
from trainer.config.root import Config
from trainer.data.files import DataFile
from trainer.rules.registry import id_rule


@dataclass(frozen=True)
class Earlier:
    """The items of a feature in all rows, `N`.

    Attributes:
        row: The row of each, `[N]`.
        item: Its place in the catalogue, `[N]`.
        distance: How far back it is: 1 for the newest of its row, `[N]`.
    """

    row: np.ndarray
    item: np.ndarray
    distance: np.ndarray


@dataclass(frozen=True)
class Items:
    """All `I` items, and which features of the rows hold items.

    Attributes:
        ids: Their ids, sorted, `[I]` int64.
        column: The group with the item of each row.
        history: The feature with a query's earlier items; None without one.
        known: For each feature of items, the ids in its table, sorted, and the place of the item of each.
    """

    ids: np.ndarray
    column: str
    history: str | None
    known: dict[str, tuple[np.ndarray, np.ndarray]]

    @classmethod
    def of(cls, config: Config, samples: DataFile, train: Table) -> "Items":
        """Reads the catalogue.

        Args:
            config: The configuration, with a catalogue.
            samples: A file of data.train.
            train: Rows of data.train.

        Raises:
            InputError: The catalogue cannot be used.
        """
        catalogue = read_catalogue(config.data, config.model.item_features, samples)
        history = config.model.history
        names = [
            history,
            *config.data.catalogue.exclude,
            *(name for name in train.rows.bags if name not in config.model.item_features),
        ]
        known = {name: found for name in names if name and (found := _known(name, config, catalogue))}
        return cls(
            ids=catalogue.ids,
            column=str(config.data.catalogue.id),
            history=next((name for name in names if name in known), None),
            known=known,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def wanted(self, table: Table) -> np.ndarray:
        """Returns the place of each row's item, `[R]`; -1 for one that the catalogue lacks."""
        return _placed(table.group(self.column), self.ids, np.arange(len(self)))

    def earlier(self, table: Table) -> Earlier:
        """Returns the items of the history that the catalogue has."""
        name = str(self.history)
        found = ids_of(table, name)
        ends = np.repeat(np.cumsum(found.lengths), found.lengths)
        newest_last = table.data.sparse[name].keep == "last"
        place = np.arange(len(found.ids))
        distance = ends - place if newest_last else place - (ends - np.repeat(found.lengths, found.lengths)) + 1
        item = _placed(found.ids, *self.known[name])
        there = item >= 0
        return Earlier(found.row[there], item[there], distance[there])

    def matrix(self, rows: int, found: Earlier, weights: np.ndarray | None = None) -> sparse.csr_matrix:
        """Returns the items of each row as a matrix, `[R, I]`: 1 for each, or their weights, which add up."""
        values = np.ones(len(found.row)) if weights is None else weights
        matrix = sparse.csr_matrix((values, (found.row, found.item)), shape=(rows, len(self)))
        if weights is None:
            matrix.data[:] = 1
        return matrix


def _known(name: str, config: Config, catalogue: Catalogue) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the ids of a feature that are items, and their places; None if its ids are no items.

    They are if an item's feature has the same table, or `data.catalogue.exclude` names the feature.
    """
    data, feature = config.data, config.data.sparse.get(name)
    if feature is None or feature.pooling == "raw":
        return None
    items = Table(catalogue.rows.slice(0, len(catalogue)), data)
    for other in config.model.item_features:
        if other in data.sparse and data.table_of(other) == data.table_of(name):
            found = ids_of(items, other)
            if len(found.ids) and (found.lengths <= 1).all():
                order = np.argsort(found.ids, kind="stable")
                return found.ids[order], found.row[order]
    if name not in data.catalogue.exclude:
        return None
    rows = id_rule(name, feature).rows_of(catalogue.ids + np.int64(feature.offset))
    order = np.argsort(rows, kind="stable")
    return rows[order], order


def _placed(ids: np.ndarray, known: np.ndarray, places: np.ndarray) -> np.ndarray:
    found = np.minimum(np.searchsorted(known, ids), len(known) - 1)
    return np.where((known[found] == ids) & (ids > NO_ID if ids.dtype == np.int32 else True), places[found], -1)


def slices(table: Table, size: int) -> Sequence[Table]:
    """Cuts rows into parts of a size."""
    return [
        Table(table.rows.slice(start, min(start + size, len(table))), table.data)
        for start in range(0, len(table), size)
    ]
