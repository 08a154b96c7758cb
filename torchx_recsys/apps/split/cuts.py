"""The ways to cut a log: by time, by user, by a share of its rows, or the last events of each user."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.conditions import shown, value_of
from torchx_recsys.apps.split.database import kind, name, names
from torchx_recsys.apps.split.log import ROW, Table
from trainer.core.console import plural
from trainer.core.errors import InputError

SPLITS = ("train", "validation", "test")
SPLIT = '"#split"'
"""The column of the table `splits` with the number of a row's split, as in a query."""
SHARE, EVENTS = "0.1", "1"
SHARE_FORM = re.compile(r"0?\.\d+|0|0\.")
NEEDS = {"time": "time", "user": "user", "last": "user"}
"""The flag that a way to cut needs."""


@dataclass(frozen=True)
class Keys:
    """The columns that say who did what when; None where a flag is unset."""

    user: str | None
    item: str | None
    time: str | None

    def need(self, flag: str, *keys: str) -> None:
        """Raises InputError if one of the columns that a flag needs is unset."""
        for key in keys:
            if getattr(self, key) is None:
                raise InputError(f"{flag} needs --{key}, the column of the {_meaning(key)}; add it")


def _meaning(key: str) -> str:
    return {"user": "user", "item": "item", "time": "moment of an event"}[key]


@dataclass(frozen=True)
class Cut:
    """How to cut a log.

    Attributes:
        by: time, user, share or last.
        validation: A share of the rows or users, a moment, or a number of events of each user.
        test: The same.
        seed: Decides which rows or users are chosen.
    """

    by: str
    validation: str
    test: str
    seed: int

    def make(self, database: Database, table: Table, keys: Keys) -> str:
        """Makes the table `splits` of rows and the numbers of their splits in `SPLITS`; returns the rule, for people.

        Raises:
            InputError: A flag is wrong, or a split would be empty.
        """
        if self.by in NEEDS:
            keys.need(f"--by {self.by}", NEEDS[self.by])
        if self.by == "time":
            split, rule = self._by_time(database, table, str(keys.time))
        elif self.by == "last":
            split, rule = self._last(keys)
        else:
            split, rule = self._by_share(table, keys)
        if self.by in ("user", "last"):
            _refuse_null(database, "--user", str(keys.user), self.by)
        query = f"SELECT {name(ROW)}, CAST({split} AS TINYINT) AS {SPLIT} FROM events"
        database.run(f"CREATE TABLE splits AS {query}")
        self._refuse_empty(database)
        return rule

    def _shares(self) -> tuple[float, float]:
        shares = []
        for flag, given in (("validation", self.validation), ("test", self.test)):
            if not SHARE_FORM.fullmatch(given):
                of = "users" if self.by == "user" else "rows"
                raise InputError(f"--{flag} is '{given}'; with --by {self.by} it is a share of the {of}, such as 0.1")
            shares.append(float(given))
        if sum(shares) >= 1:
            raise InputError(
                f"--validation {self.validation} and --test {self.test} leave nothing to train on; make them smaller"
            )
        return shares[0], shares[1]

    def _by_share(self, table: Table, keys: Keys) -> tuple[str, str]:
        """Cuts by a hash of the user or of the whole row, which depends on no order, file or thread."""
        validation, test = self._shares()
        of = name(str(keys.user)) if self.by == "user" else f"ROW({names(sorted(table.types))})"
        number = f"md5_number_lower('{self.seed} ' || CAST({of} AS VARCHAR))"
        ends = [min(round(share * 2**64), 2**64 - 1) for share in (test, test + validation)]
        split = f"CASE WHEN {number} < {ends[0]} THEN 2 WHEN {number} < {ends[1]} THEN 1 ELSE 0 END"
        what = f"users, by '{keys.user}'" if self.by == "user" else "rows; equal rows are in the same split"
        return split, f"by {self.by}: {validation:g} and {test:g} of the {what}, seed {self.seed}"

    def _last(self, keys: Keys) -> tuple[str, str]:
        numbers = []
        for flag, given in (("validation", self.validation), ("test", self.test)):
            if not given.isdigit():
                raise InputError(f"--{flag} is '{given}'; with --by last it is a number of events, such as 1")
            numbers.append(int(given))
        validation, test = numbers
        order = f"{name(keys.time)} DESC, " if keys.time else ""
        own = f"PARTITION BY {name(str(keys.user))}"
        back = f"row_number() OVER ({own} ORDER BY {order}{name(ROW)} DESC)"
        split = (
            f"CASE WHEN count(*) OVER ({own}) <= {validation + test} OR {back} > {validation + test} THEN 0 "
            f"WHEN {back} <= {test} THEN 2 ELSE 1 END"
        )
        ties = "by time, then by their order in the log" if keys.time else "by their order in the log"
        return split, (
            f"by last: of each '{keys.user}' the last {test} test, the {validation} before validate, {ties}; users "
            f"with no more than {validation + test} are in train only"
        )

    def _by_time(self, database: Database, table: Table, time: str) -> tuple[str, str]:
        """Cuts between moments: rows of the same moment are in the same split."""
        given = {"validation": self.validation, "test": self.test}
        if all(map(SHARE_FORM.fullmatch, given.values())):
            validation, test = self._shares()
            cuts = {}
            for split, share in (("test", test), ("validation", validation + test)):
                if given[split] != "0" and float(given[split]):
                    cuts[split] = _moment_near(database, split, 1 - share)
        else:
            for split, other in (("validation", "test"), ("test", "validation")):
                if SHARE_FORM.fullmatch(given[split]) and given[split] != "0":
                    raise InputError(
                        f"--{split} is {given[split]}, a share, and --{other} is {given[other]}, a moment; write two "
                        f"moments, or --{split} 0"
                    )
            cuts = {split: self._moment(database, table, time, split) for split in given if given[split] != "0"}
        literals = {split: f"CAST('{moment}' AS {table.types[time]})" for split, moment in cuts.items()}
        if len(cuts) == 2 and not database.value(f"SELECT {literals['validation']} < {literals['test']}"):
            raise InputError(
                f"--validation begins at {cuts['validation']}, which is not before --test, at {cuts['test']}; make it "
                "earlier"
            )
        cases = [
            f"WHEN {name(time)} >= {literals[one]} THEN {SPLITS.index(one)}"
            for one in ("test", "validation")
            if one in cuts
        ]
        said = ", ".join(f"{split} from {cuts[split]}" for split in ("validation", "test") if split in cuts)
        return f"CASE {' '.join(cases)} ELSE 0 END" if cases else "0", f"by time: {said or 'all rows train'}"

    def _moment(self, database: Database, table: Table, time: str, split: str) -> Any:
        given = getattr(self, split)
        literal = value_of(database, f"--{split}", time, table.types[time], given)
        return database.value(f"SELECT CAST({literal} AS {table.types[time]})")

    def _refuse_empty(self, database: Database) -> None:
        found = dict(database.rows(f"SELECT {SPLIT}, count(*) FROM splits GROUP BY ALL"))
        wanted = ["train", *(one for one in SPLITS[1:] if getattr(self, one).strip("0.") != "")]
        for split in wanted:
            if not found.get(SPLITS.index(split)):
                flags = f"--validation {self.validation} --test {self.test}"
                raise InputError(f"--by {self.by} with {flags} leaves no row in {split}; give other values")


def make_moments(database: Database, table: Table, keys: Keys, summed: Sequence[str]) -> None:
    """Makes the table `moments`: each time of an event, and the number of rows and the sums of labels before it.

    Args:
        database: The database, with `events`.
        table: The columns of the log.
        keys: Names the column of times.
        summed: Labels to sum, as `sum_0`, `sum_1` and so on.

    Raises:
        InputError: The column is not of times, or is null somewhere.
    """
    time, dtype = str(keys.time), table.types[str(keys.time)]
    if kind(dtype) not in ("integer", "number", "time"):
        example = database.value(f"SELECT any_value({name(time)}) FROM log")
        raise InputError(
            f"--time is '{time}', a column of type {dtype} with values such as '{shown(example)}'; it must have "
            "numbers, dates or timestamps"
        )
    missing = f"{name(time)} IS NULL" + (f" OR isnan({name(time)})" if dtype in ("FLOAT", "DOUBLE") else "")
    if number := database.value(f"SELECT count(*) FROM events WHERE {missing}"):
        raise InputError(
            f"--time is '{time}', which is null in {plural(number, 'row')}; leave them out with "
            f'--keep "{time} != null"'
        )
    sums = "".join(f", sum({name(one)}) AS sum_{place}" for place, one in enumerate(summed))
    earlier = "OVER (ORDER BY time ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    before = "".join(f", sum(sum_{place}) {earlier} AS sum_{place}" for place in range(len(summed)))
    database.run(
        f"CREATE TABLE moments AS SELECT time, coalesce(sum(number) {earlier}, 0) AS before, "
        f"sum(number) OVER () AS total{before} "
        f"FROM (SELECT {name(time)} AS time, count(*) AS number{sums} FROM events GROUP BY ALL)"
    )


def _moment_near(database: Database, split: str, share: float) -> Any:
    """Returns the moment before which the share of rows is nearest to `share`."""
    query = f"SELECT time FROM moments WHERE before > 0 ORDER BY abs(before - {share!r} * total), time LIMIT 1"
    if not (found := database.rows(query)):
        raise InputError(
            f"--by time: all rows are of one moment, so that {split} cannot be later than train; cut by another way, "
            "such as --by share"
        )
    return found[0][0]


def _refuse_null(database: Database, flag: str, column: str, by: str) -> None:
    if number := database.value(f"SELECT count(*) FROM events WHERE {name(column)} IS NULL"):
        raise InputError(
            f"{flag} is '{column}', which is null in {plural(number, 'row')}, and --by {by} needs it in all; leave "
            f'them out with --keep "{column} != null"'
        )
