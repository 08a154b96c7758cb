"""The items that an exported model chooses from: columns of both sides as a client sends them, and exclusions."""

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from torchx_recsys.apps.export.load import ColumnError
from torchx_recsys.apps.export.reference import raw_column
from torchx_recsys.apps.recommend.items import Items
from trainer.batches.chunk import Chunk
from trainer.core.errors import InputError, nearest, some_of
from trainer.rules.id_lists import kept_range
from trainer.rules.plain_types import is_string, to_ids, to_texts

USES = {
    **dict.fromkeys(("number", "vector", "weight", "weights"), "numbers"),
    **dict.fromkeys(("id", "list", "beside"), "ids"),
    "time": "times",
}


class ExportedItems:
    """The items as columns of an exported model.

    Args:
        signature: The signature of the model.
        items: The items.
        key: The flag that named them.
        output: The output to go by, or of vectors the one of queries. Unset: the first.

    Attributes:
        items: The items.
        outputs: The outputs to go by: a score, or the vectors of queries and of items.
        seen: Columns of queries with items to leave out.

    Raises:
        InputError: The items lack a column, or the model has no such output.
    """

    def __init__(self, signature: Mapping[str, Any], items: Items, key: str, output: str | None = None) -> None:
        about = signature.get("items", {})
        self.items, self.seen = items, about.get("seen", [])
        self._cuts = {column["name"]: column for column in signature["columns"] if "max_ids" in column}
        self._uses: dict[str, set[str]] = {}
        for column in signature["columns"]:
            use = "ids" if column.get("overlap") else USES[column["kind"]]
            if column.get("transform") == "is_missing" and not {"lookup", "overlap", "expression"} & column.keys():
                use = "nulls"
            self._uses.setdefault(column["name"], set()).add(use)
        there = items.table.column_names
        self.columns = about.get("columns") or [name for name in self._uses if name in there]
        if lacking := [name for name in self.columns if name not in there]:
            raise InputError(
                f"{key} has no column '{lacking[0]}', which the model takes of an item{nearest(lacking[0], there)}"
            )
        if not self.columns:
            raise InputError(f"{key} has the columns {some_of(there)}, none of which the model takes")
        self.outputs = _outputs(signature["outputs"], output)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def query_columns(self) -> list[str]:
        """The columns that a query has."""
        return [name for name in self._uses if name not in self.columns]

    def of_items(self, start: int, stop: int) -> dict[str, list[Any]]:
        """Returns the columns of some items."""
        chunk = Chunk(self.items.table.column, range(start, min(stop, len(self))))
        return {name: raw_column(name, chunk, self._uses[name]) for name in self.columns}

    def of_queries(self, queries: pa.Table) -> dict[str, list[Any]]:
        """Returns the columns of queries."""
        chunk = Chunk(queries.column, range(len(queries)))
        return {name: raw_column(name, chunk, self._uses[name]) for name in self.query_columns}

    def of_pairs(self, query: Mapping[str, Any], start: int, stop: int) -> dict[str, list[Any]]:
        """Returns the columns of pairs of a query, of one row, with some items."""
        items = self.of_items(start, stop)
        number = min(stop, len(self)) - start
        return {name: items[name] if name in items else [query[name][0]] * number for name in self._uses}

    def check(self, columns: Mapping[str, Any]) -> int:
        """Returns the number of queries; refuses columns of items, and lacking ones.

        Raises:
            ColumnError: The message names the column.
        """
        for name in columns:
            if name in self.columns:
                raise ColumnError(
                    f"column '{name}' is the item's; send those of queries: {some_of(self.query_columns)}"
                )
        for name in self.query_columns:
            if not isinstance(columns.get(name), list):
                raise ColumnError(
                    f"column '{name}' must be a list of values; queries have {some_of(self.query_columns)}"
                )
        return len(columns[self.query_columns[0]])

    def excluded(self, columns: Mapping[str, Any], more: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
        """Returns pairs of a query and the place of an item to leave out.

        Args:
            columns: The columns of queries.
            more: Ids of items to leave out, for each query; may be empty.
        """
        of_columns = [self._kept(name, columns[name]) for name in self.seen if name in columns]
        return [
            (query, place)
            for column in [*of_columns, *([more] if more else [])]
            for query, ids in enumerate(column)
            for id in (ids if isinstance(ids, list) else [ids])
            if isinstance(id, str | int) and (place := self._places.get(id)) is not None
        ]

    def _kept(self, name: str, lists: Sequence[Any]) -> Sequence[Any]:
        """Returns lists of ids as the model sees them, as metrics and the lists of a run leave these out."""
        if (cut := self._cuts.get(name)) is None:
            return lists
        present = [[id for id in one if id is not None] if isinstance(one, list) else [] for one in lists]
        return [one[slice(*kept_range(len(one), cut["max_ids"], cut["keep"]))] for one in present]

    @cached_property
    def _places(self) -> dict[Any, int]:
        ids = to_ids(self.items.ids)
        values = to_texts(ids) if is_string(ids.type) else ids.to_pylist()
        return {one: place for place, one in enumerate(values)}

    def shown(self, places: Sequence[int], show: Sequence[str]) -> dict[str, list[Any]]:
        """Returns the ids of items and columns to show, as JSON takes them."""
        rows = pa.array(places, pa.int64())
        found = {"item": self.items.ids.take(rows)} | {name: self.items.table[name].take(rows) for name in show}
        return {name: [_plain(one) for one in column.to_pylist()] for name, column in found.items()}


def _outputs(outputs: Sequence[Mapping[str, str]], output: str | None) -> list[str]:
    kinds = {output["name"]: output["kind"] for output in outputs}
    name = next(iter(kinds)) if output is None else output
    if name not in kinds:
        raise InputError(f"--output is '{name}', which the model does not give{nearest(name, kinds)}")
    if kinds[name] == "probabilities":
        raise InputError(f"the output '{name}' is a probability for each class, which orders no items")
    if kinds[name] == "vector":
        start = name.removesuffix("_query").removesuffix("_item")
        return [f"{start}_query", f"{start}_item"]
    return [name]


def _plain(value: Any) -> Any:
    """Returns a value as JSON takes it."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    is_json = isinstance(value, str | int | None) or (isinstance(value, float) and math.isfinite(value))
    return value if is_json else str(value)
