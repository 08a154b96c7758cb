"""What is known of the past at each row: counts and rates of keys, and the last items of a user.

Only rows of a smaller time count. Rows of the same moment do not see each other: many events of a user share a second,
and would reveal each other's labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torchx_recsys.apps.split.conditions import Condition, all_of
from torchx_recsys.apps.split.cuts import Keys
from torchx_recsys.apps.split.database import Database, name
from torchx_recsys.apps.split.labels import Label
from torchx_recsys.apps.split.log import ROW

EARLIER = "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP"


@dataclass(frozen=True)
class Made:
    """A table of columns to add to the rows, by `ROW`.

    Attributes:
        table: Name of the table.
        columns: Its columns.
    """

    table: str
    columns: Sequence[str]


def averaged(labels: Sequence[Label]) -> list[Label]:
    """Returns the labels whose mean says something: all but classes."""
    return [label for label in labels if not label.classes and label.source is not None]


def make_aggregate(
    database: Database, number: int, key: str, keys: Keys, labels: Sequence[Label], smoothing: float
) -> Made:
    """Makes the table of a key's counts, and of its means of labels, strictly before each row.

    A mean is of these rows and of `smoothing` more, which have the mean of all earlier rows of the log. It is null
    where there is no such row.

    Args:
        database: The database, with `events` and `moments`.
        number: The number of the table.
        key: The column of the key. Rows where it is null have null counts and means.
        keys: Names the column of times.
        labels: The labels to average, in the order of `moments`.
        smoothing: Rows that are added.
    """
    own, time, table = name(key), name(str(keys.time)), f"aggregate_{number}"
    window = f"OVER (PARTITION BY {own} ORDER BY {time}"
    sums = [f"sum({name(label.name)}) {window} {EARLIER}) AS own_{place}" for place, label in enumerate(labels)]
    narrow = ", ".join([name(ROW), f"{own} IS NULL AS missing", f"{time} AS time", *sums])
    counted = f"SELECT {narrow}, rank() {window}) - 1 AS number FROM events"
    columns = [f"{key}_count"]
    values = [f"CAST(CASE WHEN NOT missing THEN number END AS FLOAT) AS {name(columns[0])}"]
    for place, label in enumerate(labels):
        columns.append(f"{key}_rate" if len(labels) == 1 else f"{key}_{label.name}_rate")
        mean = (
            f"(coalesce(own_{place}, 0) + {smoothing!r} * sum_{place} / nullif(before, 0)) / (number + {smoothing!r})"
            if smoothing
            else f"own_{place} / nullif(number, 0)"
        )
        values.append(f"CAST(CASE WHEN NOT missing THEN {mean} END AS FLOAT) AS {name(columns[-1])}")
    database.run(
        f"CREATE TABLE {table} AS SELECT {name(ROW)}, {', '.join(values)} FROM ({counted}) JOIN moments USING (time)"
    )
    return Made(table, columns)


def make_history(
    database: Database, keys: Keys, length: int, beside: Sequence[str], conditions: Sequence[Condition]
) -> Made:
    """Makes the table of the last items of a user strictly before each row, oldest first.

    Args:
        database: The database, with `log` and `events`.
        keys: Names the columns of users, items and times.
        length: The largest number of items.
        beside: Columns whose values to list beside the items.
        conditions: What an event must meet to be in a history.
    """
    user, time, row = name(str(keys.user)), name(str(keys.time)), name(ROW)
    listed = [str(keys.item), *beside]
    columns = [f"{column}_history" for column in listed]
    counts = f"{name(listed[0])} IS NOT NULL AND {all_of(conditions)}"
    values = "".join(f", {name(column)} AS value_{place}" for place, column in enumerate(listed))
    narrow = (
        f"SELECT {row}, {user} AS owner, {time} AS time, {counts} AS counts{values} "
        f"FROM log JOIN (SELECT {row} FROM events) USING ({row})"
    )
    own = "PARTITION BY owner ORDER BY"
    # The events that count are numbered; a row sees the numbers before its time, however many other events are between.
    numbered = (
        f"SELECT *, count(*) FILTER (counts) OVER ({own} time, {row} ROWS UNBOUNDED PRECEDING) AS place, "
        f"count(*) FILTER (counts) OVER ({own} time {EARLIER}) AS seen FROM ({narrow})"
    )
    frame = f"{own} place RANGE BETWEEN (place - seen + {length - 1}) PRECEDING AND (place - seen) PRECEDING"
    lists = ", ".join(
        f"CASE WHEN owner IS NULL THEN [] ELSE coalesce(list(value_{place}) FILTER (counts) OVER ({frame}), []) END "
        f"AS {name(column)}"
        for place, column in enumerate(columns)
    )
    database.run(f"CREATE TABLE history AS SELECT {row}, {lists} FROM ({numbered})")
    return Made("history", columns)
