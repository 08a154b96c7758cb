"""Conditions on columns, as configurations write them: ["country", "==", "DE"]."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import pydantic

from trainer.core.errors import InputError

COMPARISONS = ("==", "!=", "<", "<=", ">", ">=", "in", "not in")
Value = str | bool | int | float
Condition = Annotated[list[Value | list[Value]], pydantic.WithJsonSchema({"type": "condition"})]


@dataclass(frozen=True)
class Clause:
    """One condition of a filter.

    Attributes:
        column: The column.
        comparison: One of COMPARISONS.
        values: The value to compare with; for `in` and `not in`, all values.
    """

    column: str
    comparison: str
    values: tuple[Value, ...]


def clauses_of(conditions: Sequence[Condition]) -> list[Clause]:
    """Returns conditions that were checked as clauses."""
    return [
        Clause(str(column), str(comparison), tuple(value) if isinstance(value, list) else (value,))
        for column, comparison, value in conditions
    ]


def check_conditions(key: str, conditions: Sequence[Condition]) -> None:
    """Refuses conditions of another form.

    Args:
        key: The key that holds them, for messages.
        conditions: The conditions.

    Raises:
        InputError: A condition is no column, comparison and value, or the value does not go with the comparison.
    """
    for condition in conditions:
        _check(key, condition)


def _check(key: str, condition: Condition) -> None:
    if len(condition) != 3 or not (isinstance(condition[0], str) and isinstance(condition[1], str)):
        raise InputError(
            f"{key} has {condition!r}; a condition is a column, a comparison and a value, such as "
            "['country', '==', 'DE']"
        )
    _, comparison, value = condition
    if comparison not in COMPARISONS:
        raise InputError(f"{key} has {condition!r}: no comparison '{comparison}'; known: {', '.join(COMPARISONS)}")
    if isinstance(value, list) != comparison.endswith("in"):
        needs = "a list of values" if comparison.endswith("in") else "one value; use 'in' for several"
        raise InputError(f"{key} has {condition!r}: '{comparison}' takes {needs}")
    if value == []:
        raise InputError(f"{key} has {condition!r}, with an empty list; name at least one value")
