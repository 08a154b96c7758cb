"""Items that a user has had already, which are left out of the user's list."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torchx_recsys.apps.recommend.items import Items, integers_of
from torchx_recsys.apps.recommend.queries import USER
from trainer.batches.chunk import Chunk, chosen, earlier
from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature, columns_of
from trainer.core.errors import InputError, nearest
from trainer.data.dataset import FileSet, inspect_files
from trainer.data.row_groups import RowGroupReader
from trainer.rules.id_lists import kept
from trainer.rules.plain_types import is_list, is_missing, list_lengths, offsets_of, plain_array


class SeenFiles(NamedTuple):
    """Files of users with items.

    Attributes:
        files: The files.
        columns: The columns of the users and the items.
        reader: Names the reader.
    """

    files: FileSet
    columns: tuple[str, str]
    reader: DataConfig


class SeenItems:
    """Finds the items to leave out, by features of the queries, and by files of users with items.

    Args:
        items: All items.
        features: Features of the queries, of which each id is an item's.
        pairs: Users and items as integers, `[N]` each.
    """

    def __init__(
        self, items: Items, features: Mapping[str, SparseFeature], pairs: tuple[np.ndarray, np.ndarray] | None
    ) -> None:
        self._items, self._features = items, features
        users, ids = pairs or (np.empty(0, np.int64), np.empty(0, np.int64))
        order = users.argsort(kind="stable")
        self._users, self._places = users[order], items.find(ids[order]) if len(ids) else ids

    def of(self, queries: pa.Table) -> Tensor:
        """Returns pairs of a query and the place of an item, `[N, 2]` int64."""
        found = [self._of_feature(queries, *each) for each in self._features.items()] + [self._of_users(queries)]
        query, place = (np.concatenate(column) for column in zip(*found, strict=True))
        known = place >= 0
        return torch.from_numpy(np.stack([query[known], place[known]], axis=1))

    def _of_feature(self, queries: pa.Table, name: str, feature: SparseFeature) -> tuple[np.ndarray, np.ndarray]:
        """Returns queries and places for the ids that the model sees: after the filter by time, cut to `max_ids`."""
        (column,), chunk = columns_of(name, feature), Chunk(queries.column, range(len(queries)))
        ids = chunk.ids(column)
        lists = ids if is_list(ids.type) else pa.LargeListArray.from_arrays(np.arange(len(ids) + 1), ids)
        if feature.times:
            lists = chosen(lists, earlier(column, feature, chunk, list_lengths(lists)))
        offsets, values = offsets_of(list_lengths(lists)), lists.flatten()
        there = ~is_missing(values)
        offsets, values = kept(offsets_of(there)[offsets], values.filter(pa.array(there)), feature)
        return np.repeat(np.arange(len(queries)), np.diff(offsets)), self._items.find(integers_of(values))

    def _of_users(self, queries: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        users = integers_of(plain_array(queries[USER]))
        first, last = (np.searchsorted(self._users, users, side=side) for side in ("left", "right"))
        query = np.repeat(np.arange(len(users)), last - first)
        places = np.arange(len(query)) + np.repeat(first - offsets_of(last - first)[:-1], last - first)
        return query, self._places[places]


def find_seen(patterns: Sequence[str], columns: tuple[str, str], data: DataConfig) -> SeenFiles:
    """Lists files of users with items.

    Args:
        patterns: Files, globs or directories.
        columns: The columns of the users and the items.
        data: Names the reader.

    Raises:
        InputError: A file cannot be read, or lacks a column.
    """
    files = inspect_files("--seen", patterns, data)
    for schema, file in files.files.first_of_schemas().items():
        for name in columns:
            if name not in schema.names:
                raise InputError(f"{file.name}: no column '{name}', which --seen needs{nearest(name, schema.names)}")
    return SeenFiles(files, columns, data)


def read_seen(found: SeenFiles) -> tuple[np.ndarray, np.ndarray]:
    """Returns users and items of files as integers, `[N]` each; rows that lack one are left out."""
    reader = RowGroupReader(found.files, found.reader, found.columns)
    groups = [reader.read(group) for group in found.files.row_groups]
    users, items = (
        plain_array(pa.chunked_array([plain_array(group(name)) for group in groups])) for name in found.columns
    )
    there = pa.array(~is_missing(users) & ~is_missing(items))
    return integers_of(users.filter(there)), integers_of(items.filter(there))
