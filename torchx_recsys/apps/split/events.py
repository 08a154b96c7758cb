"""The events of a log: the rows that are kept, with labels, features, splits and what is written of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.catalogue import TRAIN_ROWS, Known, catalogue_query, columns_of_items, read_known
from torchx_recsys.apps.split.conditions import read_conditions
from torchx_recsys.apps.split.cuts import SPLIT, SPLITS, Keys
from torchx_recsys.apps.split.database import name
from torchx_recsys.apps.split.history import make_history
from torchx_recsys.apps.split.labels import kept_rows, make_events, read_labels
from torchx_recsys.apps.split.leaks import leaking_columns
from torchx_recsys.apps.split.log import ROW, Table
from torchx_recsys.apps.split.past import Made, averaged, make_aggregate
from torchx_recsys.apps.split.text_files import Csv
from torchx_recsys.apps.split.write import write_parquet
from trainer.core.console import plural
from trainer.core.errors import InputError, some_of


class Events:
    """The events of a log in a database, as the view `events`.

    Args:
        database: The database, with the table `log`.
        log: Its columns.
        keys: The columns that say who did what when.
        keep: Conditions that an event meets.
        labels: The labels as they are typed.
        drop: Columns to leave out.

    Attributes:
        labels: The labels.
        left_out: The columns of the log that are left out, each with the reason.
        columns: The columns of the log that are written.

    Raises:
        InputError: An argument does not go with the log.
    """

    def __init__(
        self,
        database: Database,
        log: Table,
        keys: Keys,
        keep: Sequence[str],
        labels: Sequence[str],
        drop: Sequence[str],
    ) -> None:
        self._database, self._log, self._keys = database, log, keys
        kept = kept_rows(database, keep, log)
        self.labels = read_labels(database, labels, log, kept)
        make_events(database, log, self.labels, kept)
        self.left_out = {**log.left_out, **{log.column("--drop", one): "as --drop asks" for one in drop}}
        for label in self.labels:
            if label.source is not None and label.source != label.name:
                self.left_out[label.source] = f"the label '{label.name}' comes from it, so it would give it away"
        made = {label.name for label in self.labels}
        self.columns = [one for one in log.types if one not in self.left_out and one not in made]

    def leaks(self, leaks: str) -> list[str]:
        """Returns what gives a label away, a line each; `refuse` raises InputError for the first."""
        keys = (self._keys.user, self._keys.item, self._keys.time)
        features = [one for one in self.columns if one not in keys]
        found = leaking_columns(self._database, self._log, features, self.labels)
        if found and leaks == "refuse":
            columns = list(dict.fromkeys(leak.column for leak in found))
            others = f" (and so do {some_of(columns[1:])})" if columns[1:] else ""
            raise InputError(
                f"'{columns[0]}' gives the label '{found[0].label}' away: {found[0].why}{others}; leave it out with "
                f"--drop {' '.join(columns)}, or write --leaks tell if it is known before the label"
            )
        return [f"'{leak.column}' gives '{leak.label}' away: {leak.why}" for leak in found]

    def aggregates(self, given: Sequence[str], smoothing: float) -> list[Made]:
        """Makes counts and means of the past for each of the columns."""
        if given:
            self._keys.need("--aggregate", "time")
        columns = list(dict.fromkeys(self._log.column("--aggregate", one) for one in given))
        averages = averaged(self.labels)
        return [
            make_aggregate(self._database, number, column, self._keys, averages, smoothing)
            for number, column in enumerate(columns)
        ]

    def histories(self, length: int, beside: Sequence[str], where: Sequence[str], folder: Path) -> list[Made]:
        """Makes the lists of last items; none for a length of 0."""
        if not length:
            if beside or where:
                raise InputError(f"--history-{'with' if beside else 'where'} is set, but --history is 0; set both")
            return []
        self._keys.need("--history", "user", "item", "time")
        columns = [self._log.column("--history-with", one) for one in beside]
        if self._keys.item in columns:
            raise InputError(f"--history-with names '{self._keys.item}', which every history lists; leave it out")
        conditions = read_conditions(self._database, "--history-where", where, self._log)
        return [make_history(self._database, self._keys, length, columns, conditions, folder)]

    def known(self, items: str | None, users: str | None, csv: Csv, folder: Path) -> list[Known]:
        """Reads what is known of items and users."""
        taken, found = [*self._log.types, *(label.name for label in self.labels)], []
        for flag, source in (("item", items), ("user", users)):
            if source is None:
                continue
            self._keys.need(f"--{flag}s", flag)
            key = str(getattr(self._keys, flag))
            one = read_known(self._database, f"--{flag}s", source, key, csv, self._log, folder, taken)
            taken += one.columns
            found.append(one)
        return found

    def write(self, made: Sequence[Made], known: Sequence[Known], stage: Path) -> list[str]:
        """Writes the splits, in the order of time, and returns their columns."""
        of = [("events", self.columns), *((one.table, one.columns) for one in [*made, *known])]
        of.append(("events", [label.name for label in self.labels]))
        columns = [column for _, some in of for column in some]
        self._refuse_equal(columns)
        chosen = ", ".join(f"{table}.{name(column)}" for table, some in of for column in some)
        row = name(ROW)
        joins = "".join(f" JOIN {table} USING ({row})" for table in ("splits", *(one.table for one in made)))
        joins += "".join(one.join for one in known)
        order = ", ".join(f"events.{name(one)}" for one in (self._keys.time, ROW) if one)
        for number, split in enumerate(SPLITS):
            where = f"{SPLIT} = {number}"
            if self._database.value(f"SELECT count(*) FROM splits WHERE {where}"):
                query = f"SELECT {chosen} FROM events{joins} WHERE {where} ORDER BY {order}"
                write_parquet(self._database, query, stage / split / "part-00000.parquet")
        return columns

    def catalogue(self, known: Sequence[Known], stage: Path) -> tuple[dict[str, Any], list[str]]:
        """Writes the catalogue; returns its figures, and what is to be told of it."""
        self._keys.need("--catalogue", "item")
        about = next((one for one in known if one.table == "items"), None)
        others = [*self.left_out, *(label.name for label in self.labels), self._keys.user, self._keys.time]
        columns = columns_of_items(self._database, self._log, self._keys, [one for one in others if one])
        own = [str(self._keys.item), *columns, *(about.columns if about else ()), TRAIN_ROWS]
        self._refuse_equal(own)
        query = catalogue_query(self._keys, columns, about)
        write_parquet(self._database, query, stage / "items.parquet")
        items, unseen = self._database.row(f"SELECT count(*), count(*) FILTER ({TRAIN_ROWS} = 0) FROM ({query})")
        told = [f"the catalogue, items.parquet, has {plural(items, 'item')} with {', '.join(own)}"]
        if unseen:
            told.append(
                f"the catalogue has {plural(unseen, 'item')} without a row in train, of whose ids nothing is learned"
            )
        return {"items": items, "not in train": unseen, "columns": own}, told

    def _refuse_equal(self, columns: Sequence[str]) -> None:
        """Refuses to write two columns of one name."""
        seen: set[str] = set()
        for column in columns:
            if column.lower() in seen:
                raise InputError(f"two columns would be named '{column}'; rename that of the log, or --drop it")
            seen.add(column.lower())
