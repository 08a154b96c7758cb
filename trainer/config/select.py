"""Which samples of the data are trained on: a filter, fewer negatives, fewer files, and weights of files."""

from dataclasses import dataclass
from typing import Annotated, Self

import pydantic

from trainer.core.errors import InputError
from trainer.core.section import Section

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


class SelectConfig(Section):
    """Which samples are trained on, if not all. The filter applies to evaluations, too."""

    filter: list[Condition] = []
    """Conditions that must all hold: a column, a comparison and a value, such as ["country", "==", "DE"]. The column
    need not be a feature. Comparisons are ==, !=, <, <=, >, >=, in, not in; the last two take a list."""
    keep_negatives: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Fraction of the samples with first label 0 in an epoch, drawn anew each epoch. Their weights make up for it."""
    files: float = pydantic.Field(default=1.0, gt=0, le=1)
    """Fraction of the files to train on, at least one file, for a quick look."""
    mixture: dict[str, pydantic.PositiveFloat] = {}
    """How often an epoch repeats the samples of some files, by file, glob or directory. Other files count once."""

    @pydantic.model_validator(mode="after")
    def _known_comparisons(self) -> Self:
        for clause in self.filter:
            _check(clause)
        return self

    @property
    def clauses(self) -> list[Clause]:
        """The conditions of the filter."""
        return [
            Clause(str(column), str(comparison), tuple(value) if isinstance(value, list) else (value,))
            for column, comparison, value in self.filter
        ]


def _check(clause: list[Value | list[Value]]) -> None:
    if len(clause) != 3 or not (isinstance(clause[0], str) and isinstance(clause[1], str)):
        raise InputError(
            f"data.select.filter has {clause!r}; a condition is a column, a comparison and a value, such as "
            "['country', '==', 'DE']"
        )
    _, comparison, value = clause
    if comparison not in COMPARISONS:
        raise InputError(
            f"data.select.filter has {clause!r}: no comparison '{comparison}'; known: {', '.join(COMPARISONS)}"
        )
    if isinstance(value, list) != comparison.endswith("in"):
        needs = "a list of values" if comparison.endswith("in") else "one value; use 'in' for several"
        raise InputError(f"data.select.filter has {clause!r}: '{comparison}' takes {needs}")
    if value == []:
        raise InputError(f"data.select.filter has {clause!r}, with an empty list; name at least one value")
