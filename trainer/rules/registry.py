"""Finds the rule for a feature's ids by name: a built-in rule, or the user's own class with `rows_of`."""

import ast
import importlib
import inspect
import json
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.core.errors import OWN, InputError, nearest
from trainer.core.registry import find_by_name
from trainer.rules.base import IdRule, SparseKeys
from trainer.rules.hashing import Error, Hash, Modulo
from trainer.rules.managed import Managed
from trainer.rules.vocabulary import Listed

if TYPE_CHECKING:
    from torch import Tensor

ID_RULES: dict[str, type[IdRule]] = {
    "error": Error,
    "modulo": Modulo,
    "hash": Hash,
    "vocabulary": Listed,
    "managed": Managed,
}


def check_id_rule(key: str, feature: SparseKeys) -> None:
    """Refuses unknown names of rules, and options of built-in rules.

    Raises:
        InputError: The message names the key.
    """
    if feature.ids not in ID_RULES and ":" not in feature.ids:
        raise InputError(f"{key}.ids is '{feature.ids}'{nearest(feature.ids, ID_RULES, OWN)}")
    if feature.options and feature.ids in ID_RULES:
        raise InputError(
            f"{key}.options is {feature.options}, but {key}.ids is '{feature.ids}', which is no rule of your own; "
            "leave options out"
        )


def lists_ids(feature: SparseKeys) -> bool:
    """Returns whether each row of the feature's table belongs to a single id."""
    return feature.ids in ID_RULES and ID_RULES[feature.ids].lists_ids


def keeps_rows(feature: SparseKeys) -> bool:
    """Returns whether ids keep their rows when the feature's table gets more rows."""
    return feature.ids in ID_RULES and ID_RULES[feature.ids].keeps_rows


def id_rule(name: str, feature: SparseKeys) -> IdRule:
    """Returns the rule for the ids of a sparse feature.

    Raises:
        InputError: The user's own rule cannot be imported, or does not take its options.
    """
    return ID_RULES.get(feature.ids, OwnRule)(name, feature)


class OwnRule(IdRule):
    """`ids = "package.module:Rule"`: checks the results of the user's own rule, a class with `rows_of`.

    Raises:
        InputError: The rule cannot be imported, or does not take its options.
    """

    def __init__(self, name: str, feature: Any) -> None:
        super().__init__(name, feature)
        self._key = f"data.sparse.{name}"
        self._rule = _made(self._key, feature.ids, feature.rows, json.dumps(feature.options))
        self.takes_strings = getattr(self._rule, "takes_strings", False)

    @property
    def is_carried(self) -> bool:
        """Whether the rule has no torch form, so that the loader of an export runs its NumPy form."""
        return not hasattr(self._rule, "torch_rows_of")

    def source(self) -> tuple[str, str]:
        """Returns path and content of the file in an export that holds a rule without a torch form.

        Raises:
            InputError: The file imports more than NumPy, the most that the loader of an export may need.
        """
        module = self.feature.ids.partition(":")[0]
        text = inspect.getsource(importlib.import_module(module))
        if others := sorted(_imported(text) - {"numpy", *sys.stdlib_module_names}):
            raise InputError(
                f"{self._key}.ids is '{self.feature.ids}', whose file imports {others[0]}; an export carries the file, "
                "which may import NumPy alone, unless the rule has torch_rows_of"
            )
        return f"rules/{module}.py", text

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows of ids by the user's rule.

        Raises:
            InputError: The results are not rows of the table, or the rule raises ValueError.
        """
        try:
            rows = checked_rows(self._rule, ids.astype(np.int64), self.rows)
        except ValueError as error:
            raise InputError(f"{self._key}.ids is '{self.feature.ids}', which refuses ids: {error}") from error
        return rows

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the rows by the rule's torch form, or `ids` if the loader of an export ran the NumPy form."""
        return ids if self.is_carried else self._rule.torch_rows_of(ids)

    def described(self) -> dict[str, Any]:
        """Returns the options, and the file with the NumPy form of a rule without a torch form."""
        carried = {"source": self.source()[0]} if self.is_carried else {}
        return {"options": self.feature.options, **carried}


@cache
def _made(key: str, rule: str, rows: int, options: str) -> Any:
    found = find_by_name(f"{key}.ids", rule, {})
    try:
        return found(rows, **json.loads(options))
    except (TypeError, ValueError) as error:
        raise InputError(f"{key}.ids is '{rule}', which does not take {key}.options: {error}") from error


def _imported(text: str) -> set[str]:
    """Returns the packages that a file imports; `.` for packages beside the file."""
    nodes = [*ast.walk(ast.parse(text))]
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    found |= {"." if node.level else str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] or "." for name in found}


def checked_rows(rule: Any, ids: Any, rows: int) -> Any:
    """Returns the rows that a rule gives to ids, `[N]` int64 to `[N]` int64, also in the loader of an export.

    Raises:
        ValueError: The rule raises ValueError, or its results are not rows of the table.
    """
    found = rule.rows_of(ids)
    if getattr(found, "shape", None) != ids.shape or found.dtype.kind not in "iu":
        raise ValueError(f"rows_of made {found!r:.60} of {len(ids)} ids; it must return as many integers")
    outside = (found < 0) | (found >= rows)
    if outside.any():
        place = outside.argmax()
        raise ValueError(f"id {ids[place]} got the row {found[place]}, which is outside [0, {rows})")
    return found.astype("int64")
