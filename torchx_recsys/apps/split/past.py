"""What is known of a key at each row: how many rows had it before, and their mean labels.

Only rows of a smaller time count. Rows of the same moment do not see each other: many events of a user share a second,
and would reveal each other's labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.cuts import Keys
from torchx_recsys.apps.split.database import name
from torchx_recsys.apps.split.labels import Label
from torchx_recsys.apps.split.log import ROW


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
    summed = "".join(f", {name(label.name)} AS label_{place}" for place, label in enumerate(labels))
    keyed = f"(SELECT {name(ROW)}, {own} AS key, {time} AS time{summed} FROM events)"
    sums = {"number": "count(*)"} | {f"own_{place}": f"sum(label_{place})" for place in range(len(labels))}
    columns = [f"{key}_count"]
    values = [f"CAST(number AS FLOAT) AS {name(columns[0])}"]
    for place, label in enumerate(labels):
        columns.append(f"{key}_rate" if len(labels) == 1 else f"{key}_{label.name}_rate")
        mean = (
            f"(own_{place} + {smoothing!r} * sum_{place} / nullif(before, 0)) / (number + {smoothing!r})"
            if smoothing
            else f"own_{place} / nullif(number, 0)"
        )
        values.append(f"CAST({mean} AS FLOAT) AS {name(columns[-1])}")
    database.run(
        f"CREATE TABLE {table} AS SELECT {name(ROW)}, {', '.join(values)} "
        f"FROM {keyed} LEFT JOIN {_before('key', keyed, sums)} USING (key, time) JOIN moments USING (time)"
    )
    return Made(table, columns)


def _before(key: str, rows: str, sums: Mapping[str, str]) -> str:
    """Returns the query of sums over the rows of a key at smaller times, for each key and each of its times.

    Windows over times, not over rows: those that leave out rows of the same moment take quadratic time in DuckDB, and
    differences of sums of numbers are not exact.

    Args:
        key: Column of the key.
        rows: The rows, with this column and `time`.
        sums: What to sum over the rows of a moment, by the name of its column.
    """
    of_moments = ", ".join(f"{query} AS {one}" for one, query in sums.items())
    window = f"OVER (PARTITION BY {key} ORDER BY time ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    running = ", ".join(f"coalesce(sum({one}) {window}, 0) AS {one}" for one in sums)
    grouped = f"SELECT {key}, time, {of_moments} FROM {rows} WHERE {key} IS NOT NULL GROUP BY ALL"
    return f"(SELECT {key}, time, {running} FROM ({grouped}))"
