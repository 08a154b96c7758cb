"""Expressions over columns: NumPy and torch against Python's own numbers, and what is refused."""

import math
import random
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from trainer.config.features import DenseFeature, check_dense
from trainer.core.errors import InputError
from trainer.rules.expression import columns_in, evaluated

VALUES = [None, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 1e-300, 1e300, 2.0**31 + 1]
EXPRESSIONS = 300


def binary(function):
    def method(self, other):
        other = Number.of(other)
        return Number.of(None if None in (self.value, other.value) else function(self.value, other.value))

    return method


@dataclass(frozen=True, eq=False)
class Number:
    """A number of Python's, or None, which every operation passes on."""

    value: float | None

    @staticmethod
    def of(value):
        if isinstance(value, Number):
            return value
        return Number(None if value is None or math.isnan(value) else float(value))

    __add__ = binary(lambda a, b: a + b)
    __radd__ = binary(lambda a, b: b + a)
    __sub__ = binary(lambda a, b: a - b)
    __rsub__ = binary(lambda a, b: b - a)
    __mul__ = binary(lambda a, b: a * b)
    __rmul__ = binary(lambda a, b: b * a)
    __truediv__ = binary(lambda a, b: a / b if b else None)
    __rtruediv__ = binary(lambda a, b: b / a if a else None)
    __lt__ = binary(lambda a, b: a < b)
    __le__ = binary(lambda a, b: a <= b)
    __gt__ = binary(lambda a, b: a > b)
    __ge__ = binary(lambda a, b: a >= b)
    __eq__ = binary(lambda a, b: a == b)
    __ne__ = binary(lambda a, b: a != b)
    __hash__ = None

    def __neg__(self):
        return unary(lambda a: -a)(self)


def unary(function):
    def of(one):
        one = Number.of(one)
        return Number.of(None if one.value is None else function(one.value))

    return of


def exp(x):
    return math.exp(x) if x < 700 else math.inf


def where(condition, then, other):
    condition = Number.of(condition)
    if condition.value is None:
        return condition
    return Number.of(then if condition.value else other)


def coalesce(one, other):
    return Number.of(other if Number.of(one).value is None else one)


PYTHON = {
    "abs": unary(abs),
    "coalesce": coalesce,
    "column": lambda name: PYTHON_ROW[name],
    "exp": unary(exp),
    "log": unary(lambda a: math.log(a) if a > 0 else None),
    "log1p": unary(lambda a: math.log1p(a) if a > -1 else None),
    "max": lambda a, b: binary(max)(Number.of(a), b),
    "min": lambda a, b: binary(min)(Number.of(a), b),
    "sqrt": unary(lambda a: math.sqrt(a) if a >= 0 else None),
    "where": where,
}
PYTHON_ROW: dict[str, Number] = {}
TAKES = {"coalesce": 2, "max": 2, "min": 2, "where": 3}


def random_text(source, depth):
    if depth == 0 or source.random() < 0.1:
        return source.choice(["a", "b", "c", 'column("d e")', "0", "1", "2.5", "1e3"])
    kind = source.choice(["+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!=", "negative", *PYTHON])
    if kind == "negative":
        return f"-{random_text(source, 0)}"
    if kind in PYTHON and kind != "column":
        return f"{kind}({', '.join(random_text(source, depth - 1) for _ in range(TAKES.get(kind, 1)))})"
    if kind == "column":  # without parentheses, for the precedence
        return " ".join(random_text(source, 0) + f" {source.choice('+-*/')}" for _ in range(3)) + " b"
    return f"({random_text(source, depth - 1)}) {kind} ({random_text(source, depth - 1)})"


def in_python(text, row):
    PYTHON_ROW.clear()
    PYTHON_ROW.update({name: Number(value) for name, value in row.items()})
    text = re.sub(r"\b\d[\d.e]*", r"number(\g<0>)", text)  # or Python would divide by zero itself
    found = eval(text, {"__builtins__": {}}, PYTHON | PYTHON_ROW | {"number": Number.of})
    return Number.of(found).value


@pytest.mark.parametrize("seed", range(3))
def test_numpy_and_torch_compute_what_python_does(seed):
    source, nulls, numbers = random.Random(seed), 0, 0
    rows = [{name: source.choice(VALUES) for name in ("a", "b", "c", "d e")} for _ in range(40)]
    arrays = {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}
    tensors = {name: torch.from_numpy(one) for name, one in arrays.items()}
    for _ in range(EXPRESSIONS):
        text = f"{random_text(source, 3)} + a * 0"
        expected = np.array([in_python(text, row) for row in rows], np.float64)
        for library, columns in ((np, arrays), (torch, tensors)):
            found = evaluated(text, {name: columns[name] for name in columns_in(text)}, library)
            assert str(found.dtype).endswith("float64")
            np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-12, err_msg=text)
        nulls, numbers = nulls + np.isnan(expected).sum(), numbers + np.isfinite(expected).sum()
    assert min(nulls, numbers) > EXPRESSIONS


def test_columns_in_their_order_each_once():
    assert columns_in("max(views, column('a b')) / (views + clicks)") == ("views", "a b", "clicks")


WRONG = {
    "no text": ("", "cannot be read (invalid syntax); write arithmetic over columns, such as clicks / (views + 1)"),
    "half": ("a +", "cannot be read (invalid syntax)"),
    "a power": ("a ** 2", "has 'a ** 2'; it may have numbers, columns, column(\"NAME\"), + - * /, one comparison"),
    "a call of Python's": ("__import__('os')", "has '__import__("),
    "an attribute": ("a.b", "has 'a.b'"),
    "two comparisons": ("0 < a < 1", "has '0 < a < 1'"),
    "text": ("a + 'b'", "has ''b''"),
    "truth": ("where(True, a, a)", "has 'True'"),
    "infinity": ("a + 1e999", "has '1e309'"),
    "a great integer": (f"a + 1{'0' * 400}", "has '1000"),
    "two operands of log": ("log(a, 2)", "gives log 2 operands; it takes 1"),
    "a named operand": ("log(a=1)", "has 'log(a=1)'"),
    "a column that a function is called": ("log + 1", "has 'log'"),
    "no column": ("1 + 1", "names no column; name at least one"),
    "too long": ("+".join("a" * 200), "has more than 200 parts"),
    "a statement": ("a = 1", "cannot be read ("),
    "deep": ("-" * 150 + "a" + " + a" * 30, "has more than 200 parts"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_wrong_expressions(text, words):
    with pytest.raises(InputError) as raised:
        check_dense("x", DenseFeature(expression=text))
    assert f"data.dense.x.expression is '{text}', which {words}" in str(raised.value)
    assert "\n" not in str(raised.value)
