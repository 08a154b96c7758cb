"""Items that a user has had already, which are left out of the user's list."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from torchx_recsys.apps.recommend.items import Items, integers_of
from torchx_recsys.apps.recommend.queries import USER
from trainer.config.data import DataConfig
from trainer.core.errors import InputError, nearest
from trainer.data.dataset import FileSet, inspect_files
from trainer.data.row_groups import RowGroupReader
from trainer.rules.plain_types import is_list, is_missing, list_lengths, offsets_of, plain_array


class SeenItems:
    """Finds the items to leave out, by columns of the queries, and by files of users with items.

    Args:
        items: All items.
        columns: Columns of the queries with a list of items, or with one.
        pairs: Users and items as integers, `[N]` each.
    """

    def __init__(self, items: Items, columns: Sequence[str], pairs: tuple[np.ndarray, np.ndarray] | None) -> None:
        self._items, self._columns = items, columns
        users, ids = pairs or (np.empty(0, np.int64), np.empty(0, np.int64))
        order = users.argsort(kind="stable")
        self._users, self._places = users[order], items.find(ids[order]) if len(ids) else ids

    def of(self, queries: pa.Table) -> Tensor:
        """Returns pairs of a query and the place of an item, `[N, 2]` int64."""
        found = [self._of_column(queries, name) for name in self._columns] + [self._of_users(queries)]
        query, place = (np.concatenate(column) for column in zip(*found, strict=True))
        known = place >= 0
        return torch.from_numpy(np.stack([query[known], place[known]], axis=1))

    def _of_column(self, queries: pa.Table, name: str) -> tuple[np.ndarray, np.ndarray]:
        array = plain_array(queries[name])
        if is_list(array.type):
            query, values = np.repeat(np.arange(len(array)), list_lengths(array)), array.flatten()
        else:
            query, values = np.arange(len(array)), array
        there = ~is_missing(values)
        return query[there], self._items.find(integers_of(values.filter(pa.array(there))))

    def _of_users(self, queries: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        users = integers_of(plain_array(queries[USER]))
        first, last = (np.searchsorted(self._users, users, side=side) for side in ("left", "right"))
        query = np.repeat(np.arange(len(users)), last - first)
        places = np.arange(len(query)) + np.repeat(first - offsets_of(last - first)[:-1], last - first)
        return query, self._places[places]


def find_seen(patterns: Sequence[str], columns: Sequence[str], data: DataConfig) -> FileSet:
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
    return files


def read_seen(files: FileSet, columns: Sequence[str], data: DataConfig) -> tuple[np.ndarray, np.ndarray]:
    """Returns users and items of files as integers, `[N]` each; rows that lack one are left out."""
    reader = RowGroupReader(files, data, columns)
    groups = [reader.read(group) for group in files.row_groups]
    users, items = (plain_array(pa.chunked_array([plain_array(group(name)) for group in groups])) for name in columns)
    there = pa.array(~is_missing(users) & ~is_missing(items))
    return integers_of(users.filter(there)), integers_of(items.filter(there))
