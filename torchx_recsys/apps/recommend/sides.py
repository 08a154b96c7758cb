"""Which features of a model are the query's and which the item's, and rows that have both."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from trainer.batches.batch import features_only
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.rows import Rows
from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature, columns_beside, columns_of
from trainer.config.root import Config
from trainer.core.errors import InputError, some_of


@dataclass(frozen=True)
class Sides:
    """The features of a model by the side that has their columns.

    Attributes:
        query: The features of the query.
        item: The features of the item.
        both: Features that are made of columns of both, such as crosses.
        item_columns: The columns that the items have.
    """

    query: DataConfig
    item: DataConfig
    both: DataConfig
    item_columns: frozenset[str]

    @property
    def query_columns(self) -> list[str]:
        """The columns that queries need."""
        return [
            name for name in dict.fromkeys([*self.query.columns, *self.both.columns]) if name not in self.item_columns
        ]

    def __str__(self) -> str:
        query, item = ([*one.dense, *one.sparse] for one in (self.query, self.item))
        both = [*self.both.dense, *self.both.sparse]
        return f"of the user: {some_of(query)}; of the item: {some_of([*item, *both])}"


def sides_of(config: Config, item_columns: Collection[str]) -> Sides:
    """Returns the sides of a model's features: as model.item_features says, else items have all columns they can.

    Args:
        config: The configuration.
        item_columns: The columns of the items.

    Raises:
        InputError: No feature is the item's.
    """
    data, found = config.data, {"query": [], "item": [], "both": []}
    if config.model.item_features:
        data = data.with_whole_lists()
    for name, feature in [*data.dense.items(), *data.sparse.items()]:
        columns = _columns(name, feature)
        of_item = [one in item_columns for one in columns]
        if config.model.item_features:
            side = "item" if name in config.model.item_features else "query"
        else:
            side = "item" if all(of_item) else "both" if any(of_item) else "query"
        found[side].append(name)
    if not found["item"]:
        raise InputError(
            f"the items have the columns {some_of(sorted(item_columns))}, none of which the model reads, so that all "
            "would have one score; name files with its features of items by --items"
        )
    query, item, both = (features_only(data, names) for names in found.values())
    columns = frozenset(item.columns if config.model.item_features else item_columns)
    return Sides(query, item, both, columns)


def _columns(name: str, feature: DenseFeature | SparseFeature) -> list[str]:
    return [*columns_of(name, feature), *columns_beside(feature).values()]


def decoded(
    table: pa.Table, rows: range, features: DataConfig, lists: Collection[str], where: Callable[[int], str]
) -> Rows:
    """Returns some rows of a table as a model takes them.

    Args:
        table: The columns.
        rows: The rows.
        features: The features.
        lists: Those of them that are lists of ids.
        where: Names a row of the table in messages.

    Raises:
        InputError: A value is not allowed.
    """
    chunk = Chunk(table.column, rows, lambda row: where(rows.start if row is None else row))
    return decode(chunk, features, [name for name in features.sparse if name in lists])


def padded(rows: Rows, size: int, features: DataConfig) -> Rows:
    """Returns rows followed by empty ones, `size` in all."""
    return Rows.join([rows, Rows.padding(size - len(rows), features, [*rows.bags])]) if len(rows) < size else rows


def joined(parts: Sequence[tuple[Rows, DataConfig]], data: DataConfig) -> Rows:
    """Returns rows with the features of several rows of the same number, each with its features."""
    bags = {name: bag for rows, _ in parts for name, bag in rows.bags.items()}
    found = Rows.padding(len(parts[0][0]), data, [name for name in data.sparse if name in bags])
    for rows, features in parts:
        found.fill(data, rows, features)
    return Rows(
        found.numbers,
        found.ids,
        {name: bags[name] for name in found.bags},
        found.groups,
        found.hard_negatives,
        found.costs,
    )


def paired(
    queries: pa.Table, items: pa.Table, columns: Collection[str], query: np.ndarray, item: np.ndarray
) -> pa.Table:
    """Returns columns of pairs, which items have before queries.

    Args:
        queries: The columns of the queries.
        items: The columns of the items.
        columns: The columns to take.
        query: The row of each pair's query.
        item: The row of each pair's item.
    """
    sources = {True: (items, pa.array(item)), False: (queries, pa.array(query))}
    return pa.table(
        {name: source[name].take(rows) for name in columns for source, rows in [sources[name in items.column_names]]}
    )
