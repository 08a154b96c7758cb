"""Histories that are gathered from a log of events while samples are read."""

from typing import Annotated, Self

import pydantic

from trainer.config.conditions import Clause, Condition, check_conditions, clauses_of
from trainer.core.errors import InputError
from trainer.core.section import MayChange, Section


class HistoryConfig(Section):
    """Lists of a user's last events before each sample, gathered from a log that `sort-log` wrote.

    An event is in a history only if its time is before the sample's time; the oldest comes first.
    """

    log: Annotated[str | None, MayChange] = None
    """Directory that `sort-log` wrote, on any fsspec URL. Unset: lists come from the files of the samples."""
    user: str | None = None
    """Column of the samples with the user, or whatever the log is sorted by. A user without events has empty lists."""
    time: str | None = None
    """Column of the samples with their time: a timestamp, a date, or an integer, which is seconds since 1970."""
    columns: dict[str, str] = {}
    """The lists by name, each with the column of the log whose values it has: {items_before = "item"}. A feature reads
    a list like a column of the files."""
    length: pydantic.PositiveInt | None = None
    """Most events of a history: the last ones."""
    where: list[Condition] = []
    """Conditions that an event must meet, as in data.select.filter, on columns of the log."""
    each: str | None = None
    """Column of the log, such as the kind of an event: a history has up to `length` events of each of its values, all
    in the order of the log. Unset: `length` events of any kind."""
    among: pydantic.PositiveInt | None = None
    """How many of the last events before the sample are looked at, before conditions. Unset: all."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        given = sorted(self.model_dump(exclude_defaults=True))
        if given and self.log is None:
            raise InputError(
                f"data.history.{given[0]} is set, but data.history.log is not; name the directory of a log"
            )
        if self.log is None:
            return self
        needs = {"user": "a column of the samples", "time": "a column of the samples", "length": "a number of events"}
        for key, what in needs.items():
            if getattr(self, key) is None:
                raise InputError(f"data.history.log is set, but data.history.{key} is not; name {what}")
        if not self.columns:
            raise InputError("data.history.columns is empty; name at least one list and its column of the log")
        for key in ("user", "time"):
            if (name := getattr(self, key)) in self.columns:
                raise InputError(
                    f"data.history.columns names a list '{name}', which data.history.{key} is; name it otherwise"
                )
        check_conditions("data.history.where", self.where)
        return self

    @property
    def clauses(self) -> list[Clause]:
        """The conditions on events."""
        return clauses_of(self.where)

    @property
    def reads(self) -> list[str]:
        """The columns of the samples that say whose history is gathered, and until when."""
        return [name for name in (self.user, self.time) if name]
