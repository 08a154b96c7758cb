"""Who asks: the newest row of each user in a data set, or of named users."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from torchx_recsys.apps.recommend.items import ids_of
from trainer.config.data import DataConfig
from trainer.core.errors import InputError, nearest, some_of
from trainer.data.dataset import FileSet, check_files, inspect_files
from trainer.data.epoch_order import ends_of
from trainer.data.row_groups import RowGroupReader
from trainer.rules.plain_types import plain_array

USER = "user of the query"  # a column besides those of the data


@dataclass(frozen=True)
class Queries:
    """The rows that ask, `Q`, in the order of the files.

    Attributes:
        key: The key or flag that named the files.
        files: The files, with their `lists`.
        reader: Names the reader.
        column: The column of the users' ids.
        rows: The numbers of the rows in the data set, `[Q]`.
        users: The ids of the users, each once, `[Q]`.
    """

    key: str
    files: FileSet
    reader: DataConfig
    column: str
    rows: np.ndarray
    users: pa.Array

    def __len__(self) -> int:
        return len(self.rows)


def find_queries(
    key: str,
    patterns: Sequence[str],
    features: DataConfig,
    columns: Sequence[str],
    column: str | None,
    time_column: str | None,
    users: Sequence[str],
) -> Queries:
    """Finds the newest row of each user, reading the columns of users and times only.

    Args:
        key: The key or flag that named the files.
        patterns: Files, globs or directories.
        features: The features of a query, and nothing else.
        columns: The columns of a query.
        column: The column of the users' ids.
        time_column: The column to go by. Unset: the last row of a user, in the order of the files, is the newest.
        users: The users. Unset: all.

    Raises:
        InputError: The files cannot be used, or lack a column or a user.
    """
    files = inspect_files(key, patterns, features)
    file = files.files[0]
    for flag, name in (("--user-column", column), ("--time-column", time_column)):
        if name is not None and name not in file.schema.names:
            raise InputError(f"{flag} is '{name}', which {file.name} does not have{nearest(name, file.schema.names)}")
    for name in columns:
        if name not in file.schema.names:
            raise InputError(
                f"{file.name}: no column '{name}', of a feature of the users{nearest(name, file.schema.names)}"
            )
    if column is None:
        raise InputError(
            f"--user-column is not given, and data.groups names no column of users; {file.name} has: "
            f"{some_of(file.schema.names)}"
        )
    files = check_files(files, features)
    reader = RowGroupReader(files, features, [name for name in (column, time_column) if name])
    groups = [reader.read(group) for group in files.row_groups]
    ids = ids_of(file.name, column, pa.chunked_array([plain_array(group(column)) for group in groups]), "user")
    times = pa.chunked_array([plain_array(group(time_column)) for group in groups]) if time_column else None
    rows, found = _newest(ids, times, _wanted(users, ids, key))
    return Queries(key, files, features, column, rows, found)


def _newest(ids: pa.Array, times: pa.ChunkedArray | None, wanted: pa.Array | None) -> tuple[np.ndarray, pa.Array]:
    """Returns the newest row of each user, in the order of the rows, and its user."""
    order = pa.array(np.arange(len(ids)))
    if times is not None:  # rows without a time are the oldest
        keys = [("time", "ascending"), ("row", "ascending")]
        table = pa.table({"time": times, "row": order})
        order = pc.sort_indices(table, sort_keys=keys, null_placement="at_start")  # pyrefly: ignore[missing-attribute]
    last = (
        pa.table({"user": ids.take(order), "place": np.arange(len(ids))}).group_by("user").aggregate([("place", "max")])
    )
    if wanted is not None:
        last = last.filter(pc.is_in(last["user"], wanted))  # pyrefly: ignore[missing-attribute]
    rows = np.sort(order.take(last["place_max"].combine_chunks()).to_numpy())
    return rows, ids.take(pa.array(rows))


def _wanted(users: Sequence[str], ids: pa.Array, key: str) -> pa.Array | None:
    """Returns users as values of the column of ids; None for all."""
    if not users:
        return None
    found = []
    for user in users:
        try:
            found.append(pa.scalar(user).cast(ids.type))
        except pa.ArrowInvalid:
            raise InputError(f"--users has '{user}', but the ids of users are of type {ids.type}") from None
    wanted = pa.array([one.as_py() for one in found], ids.type)
    known = pc.is_in(wanted, ids).to_pylist()  # pyrefly: ignore[missing-attribute]
    if lacking := [user for user, is_known in zip(users, known, strict=True) if not is_known]:
        raise InputError(f"--users has {some_of(map(repr, lacking))}, of whom {key} has no row")
    return wanted


class QueryReader:
    """Reads the columns of queries.

    Args:
        queries: The queries.
        columns: The columns.
    """

    def __init__(self, queries: Queries, columns: Sequence[str]) -> None:
        self._queries, self._groups, self._columns = queries, queries.files.row_groups, [*columns]
        self._ends = ends_of(self._groups)
        self._reader = RowGroupReader(queries.files, queries.reader, self._columns)
        self._latest: tuple[int, pa.Table] | None = None

    def read(self, start: int, stop: int) -> pa.Table:
        """Returns the columns of the queries in `[start, stop)`, which may be none, and their users as column USER."""
        rows = self._queries.rows[start:stop]
        of_groups = np.searchsorted(self._ends, rows, side="right")
        tables = [
            self._group(number).take(rows[of_groups == number] - self._first(number))
            for number in dict.fromkeys(of_groups.tolist())
        ]
        table = pa.concat_tables([*tables, self._nothing], promote_options="permissive").combine_chunks()
        return table.append_column(USER, self._queries.users.slice(start, stop - start))

    @cached_property
    def _nothing(self) -> pa.Table:
        schema = self._queries.files.files[0].schema
        return pa.schema([schema.field(name) for name in self._columns]).empty_table()

    def _first(self, number: int) -> int:
        return int(self._ends[number]) - self._groups[number].rows

    def _group(self, number: int) -> pa.Table:
        if self._latest is None or self._latest[0] != number:  # the next part may need the rest of it
            column = self._reader.read(self._groups[number])
            self._latest = number, pa.table({name: column(name) for name in self._columns})
        return self._latest[1]
