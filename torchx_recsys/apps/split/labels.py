"""Labels of a log: conditions as 0 and 1, texts as classes, counts and durations as numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.conditions import FORM, all_of, read_condition
from torchx_recsys.apps.split.database import kind, name, names, texts
from torchx_recsys.apps.split.log import ROW, Table
from trainer.core.console import plural
from trainer.core.errors import InputError

NAMED = re.compile(r"""\s*("(?:[^"]|"")+"|[^=<>!"]+?)\s*=(?!=)\s*(.+?)\s*""")
EVERY_ROW = "1"
CLASSES = 1000  # largest number of classes; each is an output of a model
EXAMPLE = '"liked = rating >= 4", "seconds = watched" or "genre"'


@dataclass(frozen=True)
class Label:
    """A label.

    Attributes:
        name: Its column in the splits.
        source: The column of the log that it comes from; None if every row has the same label.
        query: Its value.
        rule: The rule, for people.
        classes: The texts that its integers stand for, in their order; empty if it is a number.
        is_condition: Whether it is 0 or 1.
    """

    name: str
    source: str | None
    query: str
    rule: str
    classes: tuple[str, ...] = ()
    is_condition: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """What to record of it."""
        return {"rule": self.rule} | ({"classes": [*self.classes]} if self.classes else {})


def read_labels(database: Database, given: Sequence[str], table: Table, kept: str) -> list[Label]:
    """Reads labels, such as `liked = rating >= 4`.

    Args:
        database: The database, with the table `log`.
        given: The labels as they are typed.
        table: The columns of the log.
        kept: The query of the rows that are kept.

    Raises:
        InputError: A label is of no known form, its name is taken, or a row has no value for it.
    """
    labels = [_read(database, one, table, kept) for one in given]
    taken = {column.lower(): column for column in table.types}
    for label in labels:
        column = taken.get(label.name.lower())
        if column is not None and column != label.source:
            raise InputError(f"--label is named '{label.name}', as a column of the log is; choose another name")
        taken[label.name.lower()] = ""
        _refuse_nulls(database, label, table, kept)
    return labels


def make_events(database: Database, table: Table, labels: Sequence[Label], kept: str) -> None:
    """Makes the view `events`: the rows that are kept, with all columns of the log and the labels."""
    made = {label.name for label in labels}
    columns = names([ROW, *(one for one in table.types if one not in made)])
    values = "".join(f", {label.query} AS {name(label.name)}" for label in labels)
    database.run(f"CREATE VIEW events AS SELECT {columns}{values} FROM log WHERE {kept}")


def _read(database: Database, given: str, table: Table, kept: str) -> Label:
    if given in table.types:
        return _of_column(database, given, given, table, kept)
    if not (found := NAMED.fullmatch(given)):
        if FORM.fullmatch(given):
            raise InputError(
                f"--label is '{given}', which has no name; give it one: --label \"liked = {given.strip()}\""
            )
        return _of_column(database, given, table.column("--label", given), table, kept)
    own, rest = found[1].strip('"').replace('""', '"'), found[2]
    if rest == EVERY_ROW and rest not in table.types:
        return Label(own, None, "1", "1 in every row", is_condition=True)
    if rest not in table.types and FORM.fullmatch(rest):
        condition = read_condition(database, "--label", rest, table)
        return Label(own, condition.column, f"CAST({condition.query} AS INTEGER)", rest, is_condition=True)
    return _of_column(database, own, table.column("--label", rest), table, kept)


def _of_column(database: Database, own: str, column: str, table: Table, kept: str) -> Label:
    """Returns a label with the values of a column."""
    quoted, of = name(column), kind(table.types[column])
    if of in ("integer", "number"):
        return Label(own, column, quoted, column)
    if of == "truth":
        return Label(own, column, f"CAST({quoted} AS INTEGER)", column, is_condition=True)
    if of == "duration":
        return Label(own, column, f"epoch({quoted})", f"{column} in seconds")
    if of != "text":
        raise InputError(
            f"--label names '{column}', of type {table.types[column]}; a label is a number, a text, a duration or a "
            f"condition, such as {EXAMPLE}"
        )
    query = f"SELECT DISTINCT {quoted} FROM log WHERE {kept} AND {quoted} IS NOT NULL ORDER BY 1 LIMIT {CLASSES + 1}"
    classes = tuple(value for (value,) in database.rows(query))
    if len(classes) > CLASSES:
        raise InputError(
            f"--label names '{column}', which has more than {CLASSES:,} different texts, too many for classes; write a "
            f"condition, such as {EXAMPLE}"
        )
    position = f"CAST(list_position({texts(classes)}, {quoted}) - 1 AS INTEGER)"
    return Label(own, column, position, f"the class of '{column}'", classes)


def _refuse_nulls(database: Database, label: Label, table: Table, kept: str) -> None:
    if label.source is None:
        return
    missing = f"{label.query} IS NULL"
    if table.types[label.source] in ("FLOAT", "DOUBLE"):
        missing = f"({missing} OR isnan({name(label.source)}))"
    if number := database.value(f"SELECT count(*) FROM log WHERE {kept} AND {missing}"):
        raise InputError(
            f"--label '{label.name}' has no value in {plural(number, 'row')}, where '{label.source}' is null; leave "
            f'them out with --keep "{label.source} != null"'
        )


def kept_rows(database: Database, conditions: Sequence[str], table: Table) -> str:
    """Returns the query of the rows that meet all of `--keep`.

    Raises:
        InputError: A condition is wrong, or no row meets all.
    """
    kept = all_of([read_condition(database, "--keep", one, table) for one in conditions])
    if not database.value(f"SELECT count(*) FROM log WHERE {kept}"):
        raise InputError(f"--keep is '{', '.join(conditions)}', which no row meets; write another condition")
    return kept
