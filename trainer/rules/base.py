"""The base class of rules for ids."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pydantic

from trainer.core.section import Section

if TYPE_CHECKING:
    from torch import Tensor


Option = bool | int | float | str
"""A value of a rule's option."""


class SparseKeys(Section):
    """The keys of every sparse feature."""

    rows: int = pydantic.Field(gt=0, lt=2**31)
    """Rows of the embedding table."""
    table: str | None = None
    """Name of the table; features that name the same one share it. Unset: the feature's own name."""
    dimension: pydantic.PositiveInt | None = None
    """Columns of the embedding table. Unset: model.embedding_dim."""
    column: str | None = None
    """Column of the files. Unset: the feature's own name. One column can make several features."""
    pooling: Literal["sum", "mean", "none", "raw"] = "sum"
    """How the embeddings of a sample's ids become one; none leaves them a sequence, for models that read sequences. raw
    has no table: the model reads the ids themselves, such as times in seconds."""
    ids: str = "error"
    """What becomes of an id: error refuses one outside [0, rows), modulo wraps it, hash mixes it, vocabulary looks it
    up in a list of ids, managed gives it a row when it is first seen, and package.module:Rule is a rule of your own.
    Strings are for hash, vocabulary, managed, and your own if it takes them."""
    options: dict[str, Option | list[Option]] = pydantic.Field({}, exclude_if=lambda options: not options)
    """Options of a rule of your own."""


class RefusedId(Exception):
    """An id that a rule refuses.

    Args:
        place: Number of the id among the ids.
        reason: The end of the message after the id, such as `is outside [0, 10)`.
    """

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place, self.reason = place, reason


class IdRule:
    """Turns ids into rows of a table.

    Args:
        name: The feature.
        feature: Its keys.

    Attributes:
        takes_strings: Whether ids may be strings; they arrive as 64-bit hashes.
        lists_ids: Whether each row belongs to a single id. Then all features of a table need the same rule.
        keeps_rows: Whether ids keep their rows when the table gets more rows.
    """

    takes_strings: bool = False
    lists_ids: bool = False
    keeps_rows: bool = False

    def __init__(self, name: str, feature: Any) -> None:
        self.name, self.feature, self.rows = name, feature, feature.rows

    def rows_of(self, ids: np.ndarray) -> np.ndarray:
        """Turns ids into rows, `[N]` integers of any type into `[N]` integers in `[0, rows)`.

        Raises:
            RefusedId: An id has no row.
        """
        raise NotImplementedError

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays for `torch_rows_of`, by name; an exported model keeps the arrays as weights."""
        return {}

    def torch_rows_of(self, ids: "Tensor", arrays: Mapping[str, "Tensor"], unsigned: bool) -> "Tensor":
        """Returns the same rows as `rows_of`, computed in torch, `[N]` int64, for an exported model.

        Args:
            ids: `[N]` int64, without ids that the loader of an export refuses.
            arrays: The `arrays`.
            unsigned: Whether ids are uint64 in training; `ids` has their bits.
        """
        raise NotImplementedError

    def described(self) -> dict[str, Any]:
        """Returns the entries of an export's signature for a column of these ids, besides the rule's name."""
        return {}
