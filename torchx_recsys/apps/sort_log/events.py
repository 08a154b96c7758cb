"""The events of a log in DuckDB: which of them count, what is wrong with them, and their order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.conditions import all_of, read_conditions
from torchx_recsys.apps.split.database import kind, name
from torchx_recsys.apps.split.log import ROW, Table
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.rules.derived_ids import NO_TIME, SECONDS

ROWS = 1 << 18  # rows that are written at once
RULE = (
    "Events are in the order of user and time; at the same time, in the order of the names of files and of their rows. "
    "A history has events strictly before the time of its sample."
)


@dataclass(frozen=True)
class Value:
    """A column that histories list.

    Attributes:
        query: Its values.
        texts: The table of its texts, if it is of text.
    """

    query: str
    texts: str | None = None


class Events:
    """The events to sort.

    Args:
        database: The database, with the table `log`.
        log: Its columns.
        user: The column of users.
        time: The column of times.
        values: The columns to keep; empty for all that can be.
        where: Conditions that an event must meet.
        arrived: The column of the times of arrival.
        duplicates: Whether to keep, drop or refuse equal events.

    Attributes:
        rows: Number of rows of the log.
        kept: Number of those that count.
        told: What is to be known of them, a line each.
        user_kind: What users are: integers or strings.
        unit: The unit of times.
        listed: The columns that are kept.

    Raises:
        InputError: A column cannot be used, or has nulls; an integer is no time; there are no events.
    """

    def __init__(
        self,
        database: Database,
        log: Table,
        user: str,
        time: str,
        values: Sequence[str],
        where: Sequence[str],
        arrived: str | None,
        duplicates: str,
    ) -> None:
        self._database, self._log, self.told = database, log, list[str]()
        self._user, self._time = log.column("--user", user), log.column("--time", time)
        self.user_kind = {"integer": "integers", "text": "strings"}.get(kind(log.types[self._user]), "")
        if not self.user_kind:
            raise InputError(
                f"--user is '{user}', a column of type {log.types[self._user]}; users are integers or text"
            )
        self.unit, moment = self._moment(arrived)
        self._make_kept(read_conditions(database, "--where", where, log), moment)
        self._check_times()
        self.listed = self._listed(values)
        self._refuse_nulls()
        self._values = {column: self._value(number, column) for number, column in enumerate(self.listed)}
        self._make_events(duplicates)

    def _moment(self, arrived: str | None) -> tuple[str, str]:
        """Returns the unit of times, and the query of the time that counts."""
        dtype = self._log.types[self._time]
        units = {"DATE": "s", "TIMESTAMP_NS": "ns"}
        if kind(dtype) not in ("integer", "time"):
            raise InputError(
                f"--time is '{self._time}', a column of type {dtype}; times are timestamps, dates, or integers: "
                "seconds since 1970"
            )
        unit = "s" if kind(dtype) == "integer" else units.get(dtype, "us")
        query = name(self._time)
        if arrived is not None:
            column = self._log.column("--arrived", arrived)
            if self._log.types[column] != dtype:
                raise InputError(
                    f"--arrived is '{column}', a column of type {self._log.types[column]}, but --time is of type "
                    f"{dtype}; write both alike"
                )
            self.told.append(f"an event that came late is at the time of its '{column}'")
            query = f"greatest({query}, {name(column)})"  # ignores nulls
        if kind(dtype) == "integer":
            return unit, f"CAST({query} AS BIGINT)"
        ticks = {"s": "epoch", "us": "epoch_us", "ns": "epoch_ns"}[unit]
        return unit, f"CAST({ticks}({query}) AS BIGINT)"

    def _make_kept(self, conditions: Sequence[Any], moment: str) -> None:
        """Makes the table of events that count, with the columns `#time` and `#row`."""
        self.rows = self._database.value("SELECT count(*) FROM log")
        self._database.run(f'CREATE VIEW chosen AS SELECT *, {moment} AS "#time" FROM log WHERE {all_of(conditions)}')
        user, time = name(self._user), name(self._time)
        rows, nameless, timeless = self._database.row(
            f"SELECT count(*), count(*) FILTER ({user} IS NULL), "
            f"count(*) FILTER ({user} IS NOT NULL AND {time} IS NULL) FROM chosen"
        )
        if timeless:
            raise InputError(
                f"--time is '{self._time}', which is null in {plural(timeless, 'event')}; leave them out by "
                f'--where "{self._time} != null", or fill the column'
            )
        if rows == nameless:
            raise InputError(f"--source has no events to sort: {plural(self.rows, 'row')}, of which none counts")
        self.kept = rows - nameless
        if rows < self.rows:
            self.told.append(f"left out {plural(self.rows - rows, 'row')} that --where does not want")
        if nameless:
            self.told.append(f"left out {plural(nameless, 'event')} without a '{self._user}'")
        self._database.run(f"CREATE VIEW kept AS SELECT * FROM chosen WHERE {user} IS NOT NULL")

    def _check_times(self) -> None:
        """Refuses integers that are no seconds since 1970."""
        if kind(self._log.types[self._time]) != "integer":
            return
        for value in self._database.row('SELECT min("#time"), max("#time") FROM kept'):
            if value not in SECONDS:
                raise InputError(f"--time is '{self._time}': {value} {NO_TIME}")

    def _listed(self, values: Sequence[str]) -> list[str]:
        """Returns the columns to keep besides the time."""
        if values:
            found = [self._log.column("--values", one) for one in dict.fromkeys(values)]
            for column in found:
                if kind(self._log.types[column]) in ("list", "other"):
                    raise InputError(
                        f"--values names '{column}', a column of type {self._log.types[column]}; histories list "
                        "numbers, times and text"
                    )
        else:
            others = [one for one in self._log.types if one != self._user]
            found = [one for one in others if kind(self._log.types[one]) not in ("list", "other")]
            self.told += [f"left out '{one}', of type {self._log.types[one]}" for one in others if one not in found]
        return [one for one in found if one != self._time]

    def _refuse_nulls(self) -> None:
        """Refuses events without a value: a list would be shorter than the lists beside it."""
        if not self.listed:
            return
        counts = self._database.row(
            f"SELECT {', '.join(f'count(*) FILTER ({name(one)} IS NULL)' for one in self.listed)} FROM kept"
        )
        for column, count in zip(self.listed, counts, strict=True):
            if count:
                raise InputError(
                    f"column '{column}' is null in {plural(count, 'event')}, so that its list would be shorter than "
                    f'those beside it; leave them out by --where "{column} != null", fill the column, or name others '
                    "in --values"
                )

    def _value(self, number: int, column: str) -> Value:
        """Returns the query of a column in the type that is stored, and makes the table of its texts."""
        dtype, own = self._log.types[column], name(column)
        of = kind(dtype)
        if of == "truth":
            return Value(f"CAST({own} AS TINYINT)")
        if dtype.startswith("DECIMAL"):
            return Value(f"CAST({own} AS DOUBLE)")
        if of != "text":
            return Value(own)
        # In the order in which texts come first, so that later events change no number.
        table = f"texts_{number}"
        self._database.run(
            f"CREATE TABLE {table} AS "
            'SELECT "#text", CAST(row_number() OVER (ORDER BY "#first") - 1 AS INTEGER) AS "#code" '
            f'FROM (SELECT CAST({own} AS VARCHAR) AS "#text", min({name(ROW)}) AS "#first" FROM kept GROUP BY ALL)'
        )
        return Value(f'{table}."#code"', table)

    def _make_events(self, duplicates: str) -> None:
        """Makes the view of the events to sort; `drop` leaves out copies of an event."""
        partition = ", ".join([name(self._user), '"#time"', *map(name, self.listed)])
        first = f"row_number() OVER (PARTITION BY {partition} ORDER BY {name(ROW)}) = 1"
        only = f" QUALIFY {first}" if duplicates == "drop" else ""
        self._database.run(f"CREATE VIEW events AS SELECT * FROM kept{only}")

    @property
    def time(self) -> str:
        """The column of times."""
        return self._time

    @property
    def times_are_integers(self) -> bool:
        """Whether times are integers: seconds since 1970."""
        return kind(self._log.types[self._time]) == "integer"

    @property
    def user(self) -> str:
        """The column of users."""
        return self._user

    def sorted(self) -> pa.RecordBatchReader:
        """Streams the events in order: the user, the time, and the values."""
        values = "".join(f", {one.query} AS {name(column)}" for column, one in self._values.items())
        joins = "".join(
            f' JOIN {one.texts} ON CAST({name(column)} AS VARCHAR) = {one.texts}."#text"'
            for column, one in self._values.items()
            if one.texts
        )
        return self._database.batches(
            f'SELECT {name(self._user)} AS "#user", "#time"{values} FROM events{joins} '
            f'ORDER BY "#user", "#time", {name(ROW)}',
            ROWS,
        )

    def texts(self) -> Mapping[str, pa.Array]:
        """Returns the texts of each column of text, in the order of their numbers."""
        return {
            column: self._database.batches(f'SELECT "#text" FROM {one.texts} ORDER BY "#code"')
            .read_all()
            .column(0)
            .combine_chunks()
            for column, one in self._values.items()
            if one.texts
        }
