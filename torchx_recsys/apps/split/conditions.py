"""Conditions on the columns of a log, in one form: a column, a comparison and a value."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.database import kind, name, text
from torchx_recsys.apps.split.log import Table
from trainer.core.errors import InputError

FORM = re.compile(r"""\s*(?P<column>"(?:[^"]|"")+"|.+?)\s*(?P<sign>==|!=|<>|>=|<=|=|<|>)\s*(?P<value>.+?)\s*""")
SIGNS = {"==": "=", "<>": "!="}
EXAMPLE = '"rating >= 4", "country = \'fr\'" or "rating != null"'


@dataclass(frozen=True)
class Condition:
    """A condition on a row.

    Attributes:
        column: Its column.
        query: The condition for DuckDB, which is null where the column is.
        is_of_nulls: Whether it asks for null itself.
    """

    column: str
    query: str
    is_of_nulls: bool = False


def read_condition(database: Database, flag: str, given: str, table: Table) -> Condition:
    """Reads a condition, such as `rating >= 4`.

    Raises:
        InputError: It is of another form, the column does not exist, or the value does not go with it.
    """
    found = FORM.fullmatch(given)
    if not found:
        raise InputError(f"{flag} is '{given}'; write a column, a comparison and a value, such as {EXAMPLE}")
    column, sign = table.column(flag, found["column"]), SIGNS.get(found["sign"], found["sign"])
    if found["value"].lower() == "null":
        if sign not in ("=", "!="):
            raise InputError(f"{flag} is '{given}'; null goes with = and != only")
        return Condition(column, f"{name(column)} IS {'NOT ' if sign == '!=' else ''}NULL", is_of_nulls=True)
    literal = value_of(database, flag, column, table.types[column], found["value"])
    if kind(table.types[column]) == "text" and sign not in ("=", "!="):
        raise InputError(f"{flag} compares '{column}' by {sign}, but it is a column of text; use = or !=")
    return Condition(column, f"{name(column)} {sign} {literal}")


def read_conditions(database: Database, flag: str, given: Sequence[str], table: Table) -> list[Condition]:
    """Reads several conditions."""
    return [read_condition(database, flag, one, table) for one in given]


def all_of(conditions: Sequence[Condition]) -> str:
    """Returns the query of rows that meet all conditions."""
    return " AND ".join(f"coalesce({one.query}, false)" for one in conditions) or "true"


def value_of(database: Database, flag: str, column: str, dtype: str, given: str) -> str:
    """Returns a value for a query, as the type of a column.

    Raises:
        InputError: The value is not of that type.
    """
    of, unquoted = kind(dtype), _unquoted(given)
    if of == "text":
        return text(unquoted)
    if of in ("integer", "number"):
        # Not cast to the column's type, which would round 3.5 for a column of integers.
        if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", given):
            return given
        raise InputError(f"{flag} compares '{column}', a column of numbers, with '{given}'; write a number")
    if of in ("time", "truth", "duration"):
        literal = f"TRY_CAST({text(unquoted)} AS {dtype})"
        if database.value(f"SELECT {literal} IS NOT NULL"):
            return literal
    raise InputError(f"{flag} compares '{column}', a column of type {dtype}, with '{given}'; write such a value")


def whole(words: Sequence[str]) -> list[str]:
    """Returns arguments with those joined again that a comma between quotes has parted."""
    joined: list[str] = []
    for word in words:
        if joined and not _is_closed(joined[-1]):
            joined[-1] += f",{word}"
        else:
            joined.append(word)
    return joined if all(map(_is_closed, joined)) else [*words]


def _is_closed(word: str) -> bool:
    return word.count('"') % 2 == 0 and word.count("'") % 2 == 0


def _unquoted(value: str) -> str:
    for quote in "'\"":
        if len(value) > 1 and value[0] == value[-1] == quote:
            return value[1:-1].replace(quote * 2, quote)
    return value


def shown(value: Any) -> str:
    """Returns a value of a column for a message."""
    return "-" if value is None else str(value)
