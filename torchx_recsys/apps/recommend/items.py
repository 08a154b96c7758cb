"""The items to choose from: the rows of a catalogue, sorted by id, with the columns to filter by and to show."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config.data import DataConfig
from trainer.core.errors import InputError, first_line, nearest
from trainer.data.dataset import FileSet, check_files, inspect_files
from trainer.data.row_groups import RowGroupReader
from trainer.rules.hashing import as_integers
from trainer.rules.plain_types import has_ids, is_list, plain_array, to_ids

TITLES = ("title", "name")  # columns that are shown if none is named
OWN = ("user", "rank", "item", "score")  # columns of the output besides those to show


@dataclass(frozen=True)
class ItemFiles:
    """The files of the items, before they are read.

    Attributes:
        key: The key or flag that named them.
        files: The files.
        column: The column of the ids.
        show: The columns to show.
        reader: Names the reader.
    """

    key: str
    files: FileSet
    column: str
    show: tuple[str, ...]
    reader: DataConfig

    @property
    def columns(self) -> list[str]:
        """All columns of the files."""
        return self.files.files[0].schema.names


@dataclass(frozen=True)
class Items:
    """The items, `I`.

    Attributes:
        ids: Their ids as in the files, sorted, each once.
        table: Their columns.
        lists: The features that are lists of ids.
    """

    ids: pa.Array
    table: pa.Table
    lists: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def _by_integer(self) -> tuple[np.ndarray, np.ndarray]:
        """The ids as integers in their order, and the places of the items with them."""
        integers = integers_of(self.ids)
        order = integers.argsort(kind="stable")
        return integers[order], order

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Returns the place of each id, given as in `integers_of`; -1 for an id that is no item's."""
        integers, order = self._by_integer
        found = np.minimum(np.searchsorted(integers, ids), len(self) - 1)
        return np.where(integers[found] == ids, order[found], -1)


def integers_of(ids: pa.Array) -> np.ndarray:
    """Returns plain ids as integers, `[N]` int64; strings are hashed."""
    return as_integers(to_ids(ids)).astype(np.int64)


def find_items(
    key: str, patterns: Sequence[str], column: str, show: Sequence[str] | None, data: DataConfig
) -> ItemFiles:
    """Lists the files of the items, without reading them.

    Args:
        key: The key or flag that named the files.
        patterns: Files, globs or directories.
        column: The column of the ids.
        show: Columns to show. Unset: a title or a name, if there is one.
        data: Names the reader.

    Raises:
        InputError: A file cannot be read, or lacks a column.
    """
    files = inspect_files(key, patterns, data)
    known = files.files[0].schema
    if column not in known.names:
        raise InputError(
            f"{files.files[0].name}: no column '{column}', the items' ids{nearest(column, known.names)}; or set "
            "--item-column"
        )
    shown = [name for name in TITLES if name in known.names][:1] if show is None else show
    for place, name in enumerate(shown):
        if name not in known.names:
            raise InputError(f"--show has '{name}', which {files.files[0].name} does not{nearest(name, known.names)}")
        if name in shown[:place]:
            raise InputError(f"--show has '{name}' twice; name each column once")
        if name in OWN:
            raise InputError(f"--show has '{name}', as a column of the answers is called; rename it in {key}")
    return ItemFiles(key, files, column, tuple(shown), data)


def read_items(found: ItemFiles, features: DataConfig | None, where: str | None) -> Items:
    """Reads the items that meet a condition.

    Args:
        found: The files.
        features: The features of the items, and nothing else. Unset: all columns are read as they are.
        where: A condition on their columns, as in SQL. Unset: all.

    Raises:
        InputError: A value cannot be used, an id is there twice, or no item meets the condition.
    """
    files = check_files(found.files, features) if features else found.files
    names = list(dict.fromkeys([found.column, *features.columns, *found.show])) if features else found.columns
    file, wanted = files.files[0].name, found.columns if where else names
    reader = RowGroupReader(files, found.reader, wanted)
    groups = [reader.read(group) for group in files.row_groups]
    table = pa.concat_tables([pa.table({name: group(name) for name in wanted}) for group in groups])
    if where:
        table = _meeting(table, where)
    ids = ids_of(file, found.column, table[found.column], "item")
    order = pc.sort_indices(ids)  # pyrefly: ignore[missing-attribute]
    ids, table = ids.take(order), table.select(names).take(order)
    if (same := pc.equal(ids[1:], ids[:-1])).true_count:  # pyrefly: ignore[missing-attribute]
        raise InputError(f"{file}: item {ids[same.index(True).as_py()]} is there twice; an item has one row")
    return Items(ids, table.combine_chunks(), tuple(files.files[0].lists))


def ids_of(file: str, column: str, values: pa.ChunkedArray, noun: str) -> pa.Array:
    """Returns the ids of a column, of items or of users, as the noun says; refuses nulls and what is no single id."""
    ids = plain_array(values)
    ids = ids.dictionary_decode() if pa.types.is_dictionary(ids.type) else ids
    if is_list(ids.type) or not has_ids(ids.type):
        raise InputError(f"{file}: column '{column}' is of type {ids.type}; ids of {noun}s are integers or strings")
    if ids.null_count:
        raise InputError(f"{file}: column '{column}' has a null; every {noun} needs an id")
    return ids


def _meeting(table: pa.Table, where: str) -> pa.Table:
    """Returns the rows that meet a condition. It can read nothing but the table."""
    with duckdb.connect(config={"enable_external_access": "false", "threads": "2"}) as connection:
        connection.register("items", table.append_column("place of the item", pa.array(np.arange(len(table)))))
        try:
            places = connection.table("items").filter(where).select('"place of the item"').to_arrow_table()
        except duckdb.Error as error:
            raise InputError(
                f"--where is '{where}', which is no condition on the items: {first_line(error)}"
            ) from error
    if not len(places):
        raise InputError(f"--where is '{where}', which none of the {len(table):,} items meets")
    return table.take(places.column(0).sort())
