"""Answers /recommend: the top items for queries, by the model that is served, whose batches it shares."""

import asyncio
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchx_recsys.apps.export.load import ColumnError, Model
from torchx_recsys.apps.recommend.exported import ExportedItems
from torchx_recsys.apps.recommend.top import NO_SCORE, TopItems, checked, first_of_all
from torchx_recsys.apps.serve.batching import Batcher

DEFAULT_K = 10
KEYS = ("columns", "k", "exclude")


class Recommender:
    """Finds the items of queries.

    Args:
        batcher: Computes outputs.
        items: The items.
        show: Their columns in answers.
        samples: Samples of a call of the model, and queries of a request, at most.
    """

    def __init__(self, batcher: Batcher, items: ExportedItems, show: Sequence[str], samples: int) -> None:
        self._batcher, self._items, self._show, self._samples = batcher, items, show, samples
        self._lock = asyncio.Lock()  # of the vectors of the items
        self._top: tuple[int, TopItems] | None = None  # with the export that they are of

    async def answer(self, content: Any) -> dict[str, Any]:
        """Returns the lists of a request.

        Raises:
            ColumnError: The request is wrong; the message names what.
            InputError: The model computes a value that is not finite.
        """
        columns, k, more = self._request(content)
        count = self._items.check(columns)
        if count > self._samples:
            raise ColumnError(f"{count} queries are more than the {self._samples} that are answered at once")
        if more and len(more) != count:
            raise ColumnError(f"'exclude' has {len(more)} lists, but there are {count} queries; send one for each")
        pairs = await asyncio.to_thread(self._items.excluded, columns, more)
        excluded = torch.tensor(pairs, dtype=torch.int64).view(-1, 2)
        find = self._by_vectors if len(self._items.outputs) == 2 else self._by_scores
        places, scores = await find(columns, count, k, excluded)
        return await asyncio.to_thread(self._lists, places, scores)

    def _request(self, content: Any) -> tuple[dict[str, Any], int, list[Any]]:
        is_right = isinstance(content, dict) and isinstance(content.get("columns"), dict) and {*content} <= {*KEYS}
        if not is_right:
            raise ColumnError(
                'the body must be {"columns": {NAME: [VALUE, ...]}, "k": 10, "exclude": [[ID, ...], ...]}'
            )
        k, more = content.get("k", DEFAULT_K), content.get("exclude", [])
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ColumnError(f"'k' is {k!r}; it must be a whole number from 1 up")
        if not isinstance(more, list) or not all(isinstance(one, list) for one in more):
            raise ColumnError("'exclude' must be a list of ids for each query")
        return content["columns"], min(k, len(self._items)), more

    async def _by_vectors(self, columns: dict[str, Any], count: int, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        model = self._batcher.model
        inputs = await asyncio.to_thread(model.inputs, columns)
        outputs = await self._batcher.answer(model, inputs, count)
        vectors, top = checked(outputs[self._items.outputs[0]], "of a query"), await self._top_items()
        return await asyncio.to_thread(top.find, vectors, k, excluded)

    async def _top_items(self) -> TopItems:
        """Returns the vectors of the items by the model that is served, computed once for each export."""
        async with self._lock:
            while self._top is None or self._top[0] != self._batcher.model.export.crc32:
                model, export = self._batcher.model, self._batcher.model.export.crc32
                vectors = [await self._outputs_of(model, start) for start in range(0, len(self._items), self._samples)]
                if model.export.crc32 == export:  # else changes were applied meanwhile
                    self._top = export, TopItems(checked(torch.cat(vectors), "of an item"))
            return self._top[1]

    async def _outputs_of(self, model: Model, start: int) -> Tensor:
        columns = await asyncio.to_thread(self._items.of_items, start, start + self._samples)
        inputs = await asyncio.to_thread(model.inputs, columns)
        outputs = await self._batcher.answer(model, inputs, min(self._samples, len(self._items) - start))
        return outputs[self._items.outputs[1]]

    async def _by_scores(self, columns: dict[str, Any], count: int, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        model, (name,), found = self._batcher.model, self._items.outputs, []
        for query in range(count):
            own = {name: values[query : query + 1] for name, values in columns.items()}
            for start in range(0, len(self._items), self._samples):
                pairs = await asyncio.to_thread(self._items.of_pairs, own, start, start + self._samples)
                inputs = await asyncio.to_thread(model.inputs, pairs)
                outputs = await self._batcher.answer(model, inputs, min(self._samples, len(self._items) - start))
                found.append(outputs[name])
        scores = checked(torch.cat(found), "of a pair").view(count, len(self._items))
        return await asyncio.to_thread(first_of_all, scores, k, excluded)

    def _lists(self, places: Tensor, scores: Tensor) -> dict[str, Any]:
        found: dict[str, Any] = {name: [] for name in ("item", "score", *self._show)}
        for row, own in zip(places, scores, strict=True):
            there = own > NO_SCORE
            shown = self._items.shown(row[there].tolist(), self._show) | {"score": own[there].tolist()}
            for name, values in shown.items():
                found[name].append(values)
        return {"lists": found}
