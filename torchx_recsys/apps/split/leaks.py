"""Leaks: columns that give the label away, and what train knows of test."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.cuts import SPLIT, Keys
from torchx_recsys.apps.split.database import kind, name, names
from torchx_recsys.apps.split.labels import Label
from torchx_recsys.apps.split.log import ROW, Table
from trainer.core.console import plural

LOOKED_AT = 1_000_000  # approximate number of rows of train in which columns are compared with labels
ENOUGH = 20  # smallest number of rows that say anything
OF_EACH = 5  # smallest number of rows with each side of a label
COPY = 0.99999  # smallest correlation of a column that is the label in another unit


@dataclass(frozen=True)
class Leak:
    """A column that gives a label away.

    Attributes:
        column: The column.
        label: The label.
        why: What was found.
    """

    column: str
    label: str
    why: str


def leaking_columns(database: Database, table: Table, columns: Sequence[str], labels: Sequence[Label]) -> list[Leak]:
    """Returns the columns of train that decide a label.

    Args:
        database: The database, with `events` and `splits`.
        table: The columns of the log.
        columns: The columns to look at, which become features.
        labels: The labels.
    """
    rows = database.value(f"SELECT count(*) FROM splits WHERE {SPLIT} = 0")
    some = f"{name(ROW)} % {max(1, rows // LOOKED_AT)} = 0"
    database.run(
        f"CREATE OR REPLACE VIEW train AS SELECT events.* FROM events JOIN splits USING ({name(ROW)}) "
        f"WHERE {SPLIT} = 0 AND {some}"
    )
    found = []
    for label in labels:
        lowest, highest = database.row(f"SELECT min({name(label.name)}), max({name(label.name)}) FROM train")
        if lowest == highest:
            continue
        for column in columns:
            if kind(table.types[column]) in ("list", "other"):
                continue
            if why := next(_reasons(database, column, table.types[column], label, lowest), None):
                found.append(Leak(column, label.name, why))
    return found


def _reasons(database: Database, column: str, dtype: str, label: Label, lowest: float) -> Iterator[str]:
    pairs = f"(SELECT {name(column)} AS own, {name(label.name)} AS label, {name(column)} IS NULL AS missing FROM train)"
    counted = "SELECT count(*) AS n, min(label) AS low, max(label) AS high, missing"
    mixed, rows, repeated, of_lowest, others = database.row(
        "SELECT count(*) FILTER (n > 1 AND low <> high), sum(n), sum(n) FILTER (n > 1), "
        f"sum(n) FILTER (n > 1 AND low = {lowest}), sum(n) FILTER (n > 1 AND low > {lowest}) "
        f"FROM ({counted} FROM {pairs} GROUP BY own, missing) WHERE NOT missing"
    )
    is_enough = (repeated or 0) >= max(ENOUGH, (rows or 0) / 2)
    if is_enough and not mixed and min(of_lowest or 0, others or 0) >= OF_EACH:
        yield f"each of its values always has the same '{label.name}'"
    groups = database.rows(f"SELECT missing, n, low, high FROM ({counted} FROM {pairs} GROUP BY missing)")
    if len(groups) == 2 and min(n for _, n, _, _ in groups) >= ENOUGH:
        (_, _, low, high), (_, _, other_low, other_high) = groups
        if low == high and other_low == other_high:
            yield f"it is null exactly where '{label.name}' is {low if groups[0][0] else other_low:g}"
    if kind(dtype) in ("integer", "number", "truth") and not label.classes:
        number = "CAST(own AS DOUBLE)"
        below, above = (
            database.row(f"SELECT count(own), min({number}), max({number}) FROM {pairs} WHERE label {sign} {lowest}")
            for sign in ("=", ">")
        )
        if label.is_condition and min(below[0], above[0]) >= ENOUGH and (below[2] < above[1] or above[2] < below[1]):
            yield f"a threshold of it decides '{label.name}'"
        likeness = database.value(f"SELECT corr({number}, label) FROM {pairs} WHERE isfinite({number})")
        if likeness is not None and abs(likeness) >= COPY and (rows or 0) >= ENOUGH:
            yield f"it rises and falls with '{label.name}', a correlation of {likeness:.6f}"


def shared_knowledge(database: Database, table: Table, keys: Keys, by: str) -> Iterator[str]:
    """Yields what train knows of test for its way to cut, one line each."""
    if by == "time":
        return
    row = name(ROW)
    if keys.time:
        time = name(keys.time)
        later = database.value(
            f"SELECT count(*) FROM events JOIN splits USING ({row}) WHERE {SPLIT} = 0 AND {time} >= "
            f"(SELECT min({time}) FROM events JOIN splits USING ({row}) WHERE {SPLIT} = 2)"
        )
        if later:
            yield (
                f"train has {plural(later, 'row')} not earlier than the first of test, so that metrics are those of a "
                "model that knows the future; --by time cuts by time"
            )
    if by == "last":
        one = f"hash(ROW({names(sorted(table.types))}))"
        again = database.value(
            f"SELECT coalesce(sum(n), 0) FROM (SELECT count(*) AS n FROM log JOIN splits USING ({row}) "
            f"GROUP BY {one} HAVING min({SPLIT}) <> max({SPLIT}))"
        )
        if again:
            yield f"{plural(again, 'row')} are equal to a row of another split; write each event once"
