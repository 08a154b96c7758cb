"""Tables of items and users: joined to the rows, and the catalogue, a row for each item."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.cuts import SPLIT, Keys
from torchx_recsys.apps.split.database import kind, name, names
from torchx_recsys.apps.split.log import ROW, Table, read_table
from torchx_recsys.apps.split.text_files import Csv
from trainer.core.errors import InputError

TRAIN_ROWS = "train_rows"


@dataclass(frozen=True)
class Known:
    """What a file has about the items or the users.

    Attributes:
        table: Name of its table.
        key: The column that names an item or a user, as in the log.
        columns: The other columns.
    """

    table: str
    key: str
    columns: Sequence[str]

    @property
    def join(self) -> str:
        """The join that adds the columns to `events`."""
        return f" LEFT JOIN {self.table} ON events.{name(self.key)} = {self.table}.{name(self.key)}"


def read_known(
    database: Database, flag: str, source: str, key: str, csv: Csv, log: Table, folder: Path, taken: Sequence[str]
) -> Known:
    """Reads a file with a row for each item or user.

    Args:
        database: The database.
        flag: --items or --users.
        source: The file.
        key: The column of the log that names an item or a user; the file has it, too.
        csv: How text files are read.
        log: The columns of the log.
        folder: A local directory for a copy.
        taken: Names that its other columns may not have.

    Raises:
        InputError: The file cannot be read, has no such column, has a key twice, or a name is taken.
    """
    table = flag.strip("-")
    found = read_table(database, flag, (source,), table, csv, folder / table)
    if key not in found.types:
        raise InputError(
            f"{flag} has no column '{key}', by which it is joined to the log; it has {', '.join(found.types)}"
        )
    if kind(found.types[key]) != kind(log.types[key]):
        raise InputError(
            f"{flag}: its '{key}' is of type {found.types[key]}, and that of the log {log.types[key]}; make them alike"
        )
    lowered = {one.lower(): one for one in taken}
    if both := [one for one in found.types if one != key and one.lower() in lowered]:
        raise InputError(f"{flag} has a column '{both[0]}', as the log has, or its labels; rename one of them")
    twice = f"SELECT {name(key)} FROM {table} GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
    if again := database.rows(twice):
        raise InputError(f"{flag} has more than one row with {key} = {again[0][0]}; write one row for each")
    return Known(table, key, [one for one in found.types if one != key])


def columns_of_items(database: Database, table: Table, keys: Keys, but: Sequence[str]) -> list[str]:
    """Returns the columns of the log that have one value for each item.

    Args:
        database: The database, with `events`.
        table: The columns of the log.
        keys: Names the column of items.
        but: Columns that cannot be of items, such as users, times and labels.
    """
    columns = [one for one in table.types if one not in (*but, keys.item)]
    item = name(str(keys.item))
    if not columns or not database.value(f"SELECT count(*) > count(DISTINCT {item}) FROM events"):
        return []  # where no item comes twice, each column would have one value
    same = ", ".join(f"bool_and(low_{i} IS NOT DISTINCT FROM high_{i})" for i in range(len(columns)))
    ends = ", ".join(
        f"min({name(column)}) AS low_{i}, max({name(column)}) AS high_{i}" for i, column in enumerate(columns)
    )
    found = database.row(f"SELECT {same} FROM (SELECT {item}, {ends} FROM events WHERE {item} IS NOT NULL GROUP BY 1)")
    return [column for column, is_same in zip(columns, found, strict=True) if is_same]


def catalogue_query(keys: Keys, columns: Sequence[str], known: Known | None) -> str:
    """Returns the query of the catalogue: all items, in their order, with their rows in train."""
    item = name(str(keys.item))
    own = "".join(f", max({name(column)}) AS {name(column)}" for column in columns)
    counted = (
        f"SELECT {item}, count(*) FILTER ({SPLIT} = 0) AS {TRAIN_ROWS}{own} "
        f"FROM events JOIN splits USING ({name(ROW)}) WHERE {item} IS NOT NULL GROUP BY {item}"
    )
    chosen = names([str(keys.item), *columns, *(known.columns if known else ())])
    full = f" FULL JOIN {known.table} USING ({item})" if known else ""
    return (
        f"SELECT {chosen}, coalesce({TRAIN_ROWS}, 0) AS {TRAIN_ROWS} FROM ({counted}){full} "
        f"WHERE {item} IS NOT NULL ORDER BY {item}"
    )
