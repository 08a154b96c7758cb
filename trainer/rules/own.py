"""`ids = "package.module:Rule"`: a rule of the user's own, a class with `rows_of`."""

import inspect
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.core.errors import InputError
from trainer.core.registry import find_by_name
from trainer.rules.base import IdRule

if TYPE_CHECKING:
    from torch import Tensor


class OwnRule(IdRule):
    """Checks what the user's rule returns.

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

    @property
    def source(self) -> tuple[str, str]:
        """The name of the rule's module, and the module's source."""
        module = inspect.getmodule(type(self._rule))
        assert module is not None
        return module.__name__, Path(inspect.getfile(module)).read_text()

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Returns the rows that the user's rule gives to ids.

        Raises:
            InputError: They are no rows of the table, or the rule raises ValueError.
        """
        try:
            rows = checked_rows(self._rule, ids.astype(np.int64), self.rows)
        except ValueError as error:
            raise InputError(f"{self._key}.ids is '{self.feature.ids}', which refuses ids: {error}") from error
        return rows

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the rows by the rule's torch form; rows already, if the loader of an export ran its NumPy form."""
        return ids if self.is_carried else self._rule.torch_rows_of(ids)

    def described(self) -> dict[str, Any]:
        """Returns the options, and for a rule without a torch form the file with its NumPy form."""
        carried = {"source": f"rules/{self.source[0]}.py"} if self.is_carried else {}
        return {"options": self.feature.options, **carried}


@cache
def _made(key: str, rule: str, rows: int, options: str) -> Any:
    found = find_by_name(f"{key}.ids", rule, {})
    try:
        return found(rows, **json.loads(options))
    except (TypeError, ValueError) as error:
        raise InputError(f"{key}.ids is '{rule}', which does not take {key}.options: {error}") from error


def checked_rows(rule: Any, ids: np.ndarray, rows: int) -> np.ndarray:
    """Returns the rows that a rule gives to ids, `[N]` int64 to `[N]` int64.

    Raises:
        ValueError: The rule does, or what it returns are no rows of the table.
    """
    found = np.asarray(rule.rows_of(ids))
    if found.shape != ids.shape or found.dtype.kind not in "iu":
        raise ValueError(
            f"{ids.shape[0]} ids gave {found.dtype} of shape {[*found.shape]}; it must be as many integers"
        )
    outside = (found < 0) | (found >= rows)
    if outside.any():
        place = outside.argmax()
        raise ValueError(f"id {ids[place]} gave the row {found[place]}, which is outside [0, {rows})")
    return found.astype(np.int64)
