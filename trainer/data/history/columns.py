"""The lists of histories as columns of a data set: their names and types, and what they need of the samples."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.config.history import HistoryConfig
from trainer.core.errors import InputError, nearest, some_of
from trainer.data.history.log import EventLog, open_log
from trainer.rules.plain_types import is_list, meaning, plain_type


@dataclass(frozen=True)
class HistoryColumns:
    """The columns that are gathered from a log.

    Attributes:
        config: How.
        log: The log.
    """

    config: HistoryConfig
    log: EventLog

    @cached_property
    def fields(self) -> list[pa.Field]:
        """Names and types of the lists."""
        return [pa.field(name, pa.large_list(self.log.types[of])) for name, of in self.config.columns.items()]

    def fields_beside(self, file: str, schema: pa.Schema) -> list[pa.Field]:
        """Returns the lists of a file; none for files without users and times, such as a catalogue.

        Raises:
            InputError: The file has a column of the name of a list.
        """
        if not {*self.config.reads} <= {*schema.names}:
            return []
        for field in self.fields:
            if field.name in schema.names:
                raise InputError(
                    f"{file}: there is a column '{field.name}', which data.history.columns gathers from the log; name "
                    "the list otherwise, or leave data.history out to read the file's own"
                )
        return self.fields

    def check(self, file: str, schema: pa.Schema) -> None:
        """Refuses samples without users and times, or whose users or times are of another kind than those of the log.

        Raises:
            InputError: The message names the column.
        """
        for key, name in (("user", self.config.user), ("time", self.config.time)):
            if schema.names.count(name) != 1:
                number = "no column" if name not in schema.names else "more than one column"
                raise InputError(
                    f"{file}: {number} '{name}', which data.history.{key} names; the file has: {some_of(schema.names)}"
                )
        user, time = (schema.field(name).type for name in self.config.reads)
        here, there = None if is_list(user) else meaning(user, of_ids=True), self.log.about["user"]["kind"]
        if here != there and not pa.types.is_null(plain_type(user)):
            raise InputError(
                f"{file}: column '{self.config.user}' is of type {user}, but the log at {self.log.name} has users that "
                f"are {there}; write them alike"
            )
        plain = plain_type(time)
        if not (pa.types.is_timestamp(plain) or pa.types.is_date(plain) or pa.types.is_integer(plain)):
            raise InputError(
                f"{file}: column '{self.config.time}' is of type {time}; data.history.time takes timestamps, dates, or "
                "integers: seconds since 1970"
            )


def history_columns(config: DataConfig, names: Collection[str] | None = None) -> HistoryColumns | None:
    """Returns the columns that are gathered from a log, if there are any among `names`; None: whatever is read.

    Raises:
        InputError: The log cannot be used, or lacks a column.
    """
    history = config.history
    if history.log is None or (names is not None and not history.columns.keys() & {*names}):
        return None
    log = open_log(history.log)
    of = {f"columns.{name}": column for name, column in history.columns.items()}
    of |= {"each": history.each} if history.each else {}
    for key, column in of.items():
        if column not in log.types:
            raise InputError(
                f"data.history.{key} is '{column}', which the log at {log.name} lacks{nearest(column, log.types)}"
            )
    return HistoryColumns(history, log)
