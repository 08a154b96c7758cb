"""Arithmetic over columns of numbers: `clicks / (views + 1)`, the same in NumPy and in torch.

Computed in float64. NaN stands for a null: an operation on a null is null, and so is one without a result, such as a
division by 0. So every operation below passes NaN on, whatever the library makes of it.
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pydantic

from trainer.core.errors import InputError
from trainer.core.section import Section

NAN = math.nan
MOST_NODES = 200  # of the tree, which is walked recursively
Operation = Callable[..., Any]
"""Takes NumPy or torch, then arrays `[R]` float64 of it."""


def _compared(compare: Callable[[Any, Any], Any]) -> Operation:
    def values(library: Any, a: Any, b: Any) -> Any:
        one = library.full_like(a, 1.0)
        return library.where(library.isnan(a + b), NAN, library.where(compare(a, b), one, one - 1))

    return values


OPERATORS: dict[type, Operation] = {
    ast.Add: lambda library, a, b: a + b,
    ast.Sub: lambda library, a, b: a - b,
    ast.Mult: lambda library, a, b: a * b,
    ast.Div: lambda library, a, b: library.where(b == 0, NAN, a / b),
    ast.USub: lambda library, a: -a,
    ast.Lt: _compared(operator.lt),
    ast.LtE: _compared(operator.le),
    ast.Gt: _compared(operator.gt),
    ast.GtE: _compared(operator.ge),
    ast.Eq: _compared(operator.eq),
    ast.NotEq: _compared(operator.ne),
}
FUNCTIONS: dict[str, tuple[int, Operation]] = {
    "abs": (1, lambda library, a: library.abs(a)),
    "coalesce": (2, lambda library, a, b: library.where(library.isnan(a), b, a)),
    "exp": (1, lambda library, a: library.exp(a)),
    "log": (1, lambda library, a: library.where(a <= 0, NAN, library.log(a))),
    "log1p": (1, lambda library, a: library.where(a <= -1, NAN, library.log1p(a))),
    "max": (2, lambda library, a, b: library.where(library.isnan(a + b), NAN, library.where(a > b, a, b))),
    "min": (2, lambda library, a, b: library.where(library.isnan(a + b), NAN, library.where(a < b, a, b))),
    "sqrt": (1, lambda library, a: library.sqrt(a)),
    "where": (3, lambda library, a, b, c: library.where(library.isnan(a), NAN, library.where(a != 0, b, c))),
}
"""The functions, each with its number of operands."""
ALLOWED = (
    f'numbers, columns, column("NAME"), + - * /, one comparison at a time, and the functions {", ".join(FUNCTIONS)}'
)


class ExpressionKeys(Section):
    """The key of a number computed from several columns."""

    expression: str | None = pydantic.Field(None, exclude_if=lambda value: value is None)
    """Instead of a column: arithmetic over columns of numbers, such as "clicks / (views + 1)", with + - * /,
    comparisons (1 or 0) and abs, coalesce, exp, log, log1p, max, min, sqrt, where. column("NAME") is a column whose
    name is not a word. Null if an operand is, or without a result, as for a division by 0."""

    def check_expression(self, key: str) -> None:
        """Refuses what is no such arithmetic.

        Raises:
            InputError: The message names the key.
        """
        if self.expression is None:
            return
        try:
            if not columns_in(self.expression):
                raise NotArithmeticError("names no column; name at least one")
        except NotArithmeticError as error:
            raise InputError(f"{key}.expression is '{self.expression}', which {error}") from error


def columns_in(text: str) -> tuple[str, ...]:
    """Returns the columns that an expression reads, each once.

    Raises:
        NotArithmeticError: The text is no expression.
    """
    found = (_column(node) for node in ast.walk(_parsed(text)))
    return tuple(dict.fromkeys(name for name in found if name is not None))


def inputs_of_expression(name: str, text: str) -> dict[str, str]:
    """Returns the names of the inputs for the columns of a feature's expression in an exported model, by column."""
    return {column: f"{name}.{column}" for column in columns_in(text)}


def evaluated(text: str, columns: Mapping[str, Any], library: Any) -> Any:
    """Returns the values of an expression, `[R]` float64, NaN for a null.

    Args:
        text: The expression.
        columns: Its columns, `[R]` float64, NaN for a null.
        library: NumPy or torch, of which the columns are.
    """

    def value(node: ast.AST) -> Any:
        if (name := _column(node)) is not None:
            return columns[name]
        if isinstance(node, ast.Constant):
            return library.full_like(next(iter(columns.values())), float(_number(node)))
        operation, operands = _operation(node)
        return operation(library, *map(value, operands))

    with np.errstate(all="ignore"):
        return value(_parsed(text))


class NotArithmeticError(Exception):
    """The text is no expression; the message ends `data.dense.NAME.expression is 'TEXT', which `."""


@cache
def _parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise NotArithmeticError(
            f"cannot be read ({reason}); write arithmetic over columns, such as clicks / (views + 1)"
        ) from error
    if sum(1 for _ in ast.walk(tree)) > MOST_NODES:
        raise NotArithmeticError(f"has more than {MOST_NODES} parts; divide it, or write its result as a column")
    _check(tree)
    return tree


def _check(node: ast.AST) -> None:
    if _column(node) is None and not isinstance(node, ast.Constant):
        for operand in _operation(node)[1]:
            _check(operand)
    elif isinstance(node, ast.Constant):
        _number(node)


def _column(node: ast.AST) -> str | None:
    """Returns the column that a part of an expression is; None for another part."""
    if isinstance(node, ast.Name) and node.id not in FUNCTIONS and node.id != "column":
        return node.id
    match node:
        case ast.Call(func=ast.Name(id="column"), args=[ast.Constant(value=str(name))], keywords=[]):
            return name
    return None


def _number(node: ast.Constant) -> float:
    """Returns the value of a constant."""
    try:
        value = node.value
        found = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else NAN
    except OverflowError:
        found = NAN
    if not math.isfinite(found):
        raise _refused(node)
    return found


def _operation(node: ast.AST) -> tuple[Operation, list[ast.expr]]:
    """Returns the operation and the operands of a part of an expression."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=operands, keywords=[]) if name in FUNCTIONS:
            takes, operation = FUNCTIONS[name]
            if len(operands) != takes:
                raise NotArithmeticError(f"gives {name} {len(operands)} operands; it takes {takes}")
            return operation, operands
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)], [left, right]
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
            return OPERATORS[type(op)], [left, right]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)], [operand]
    raise _refused(node)


def _refused(node: ast.AST) -> NotArithmeticError:
    return NotArithmeticError(f"has '{ast.unparse(node)}'; it may have {ALLOWED}")
