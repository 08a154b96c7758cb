"""Answers queries by a trained model on all ranks: by the vectors of two sides, or by scoring each item for each query.

A rank always computes as many rows at once, and a row has the same place among them on any number of ranks, as products
of matrices of another shape are rounded differently.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor

from torchx_recsys.apps.predict.inference import Predictor
from torchx_recsys.apps.recommend.approximate import search_of
from torchx_recsys.apps.recommend.items import Items
from torchx_recsys.apps.recommend.queries import USER
from torchx_recsys.apps.recommend.sides import Sides, decoded, joined, padded, paired
from torchx_recsys.apps.recommend.top import checked, first_of_all
from trainer.batches.batch import to_batch
from trainer.batches.rows import Rows
from trainer.config.data import DataConfig
from trainer.core.distributed import DistributedContext
from trainer.data.columns import lists_of
from trainer.models.outputs import ModelOutput
from trainer.training.sharded_model import ShardedModel

PAIRS = 1 << 20  # pairs of a query and an item that are scored between two looks for a request to stop


class Answers(Protocol):
    """Finds the items of queries.

    Attributes:
        at_once: Queries that are answered at once, at most.
    """

    at_once: int

    def find(self, queries: pa.Table, most: int, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Returns places of items and scores as `TopItems.find`. All ranks call it equally often.

        Args:
            queries: The columns of this rank's queries, which may be none.
            most: The greatest number of queries that a rank has in this call.
            k: How many items.
            excluded: Items to leave out, as for `TopItems.find`.
        """
        ...


class Model:
    """A trained model as a function of rows.

    Args:
        model: The model, inside `averaged()`.
        output: The output to compute.
        features: The features that the rows have.
        data: All features.
        context: This process among the ranks.
    """

    def __init__(
        self,
        model: ShardedModel,
        output: ModelOutput,
        features: DataConfig,
        data: DataConfig,
        context: DistributedContext,
    ) -> None:
        self._predictor = Predictor(model, [output], features, data, context.device)
        self._name, self.features = output.name, features

    def __call__(self, rows: Rows) -> Tensor:
        """Returns the output of rows, `[R, ...]`, on the CPU."""
        (found,) = self._predictor.compute(iter([to_batch(rows, self.features, 0.0)]))
        return found[self._name]


class ByVectors:
    """Finds items by the inner product of the query's and the item's vector.

    Args:
        query: Computes vectors of queries.
        item: Computes vectors of items.
        items: The items.
        lists: The features of queries that are lists.
        at_once: Rows that a rank computes at once.
        index: An index of faiss to search. Unset: all items are compared.
        context: This process among the ranks.
    """

    def __init__(
        self,
        query: Model,
        item: Model,
        items: Items,
        lists: tuple[str, ...],
        at_once: int,
        index: str | None,
        context: DistributedContext,
    ) -> None:
        self._query, self._lists, self.at_once, self._device = query, lists, at_once, context.device
        self._top = search_of(checked(_item_vectors(item, items, at_once, context), "of an item"), index)

    def find(self, queries: pa.Table, most: int, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Returns places of items and scores."""
        features = self._query.features
        rows = decoded(queries, range(len(queries)), features, self._lists, partial(_where_query, queries))
        vectors = self._query(padded(rows, self.at_once, features))[: len(queries)]
        places, scores = self._top.find(checked(vectors, "of a query").to(self._device), k, excluded.to(self._device))
        return places.cpu(), scores.cpu()


def _item_vectors(model: Model, items: Items, size: int, context: DistributedContext) -> Tensor:
    """Returns the vectors of all items, `[I, D]`, on every rank, which compute blocks of `size` items in turn."""
    found = []
    for start in range(0, len(items), size * context.world_size):
        own = min(start + size * context.rank, len(items))
        rows = decoded_items(items, range(own, min(own + size, len(items))), model.features)
        found.append(model(padded(rows, size, model.features)))
    shares = torch.stack(found).to(context.device)
    every = shares.new_empty(context.world_size * len(shares), *shares.shape[1:])
    dist.all_gather_into_tensor(every, shares)
    return every.view(-1, *shares.shape).transpose(0, 1).flatten(0, 2)[: len(items)].contiguous()


def decoded_items(items: Items, rows: range, features: DataConfig) -> Rows:
    """Returns some items as a model takes them; raises InputError for a value that is not allowed."""
    return decoded(items.table, rows, features, items.lists, lambda row: f"item {items.ids[row]}")


class ByScores:
    """Finds items by the scores of all pairs of a query and an item.

    Args:
        model: Computes the score of a pair.
        sides: The features of both sides.
        items: The items.
        lists: The features of queries that are lists.
        at_once: Pairs that a rank computes at once.
    """

    def __init__(self, model: Model, sides: Sides, items: Items, lists: tuple[str, ...], at_once: int) -> None:
        self._model, self._sides, self._items, self._pairs = model, sides, items, at_once
        self._rows = decoded_items(items, range(len(items)), sides.item)
        self._lists = lists
        self.at_once = max(1, PAIRS // len(items))

    def find(self, queries: pa.Table, most: int, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Returns places of items and scores."""
        found = torch.cat([self._model(rows) for rows in self._blocks(queries, most)])
        scores = checked(found[: len(queries) * len(self._items)], "of a pair")
        return first_of_all(scores.view(len(queries), len(self._items)), k, excluded)

    def _blocks(self, queries: pa.Table, most: int) -> Iterator[Rows]:
        """Yields the pairs of this rank, query by query, padded to as many as the rank with the most queries has."""
        where, number = partial(_where_query, queries), len(self._items)
        rows = decoded(queries, range(len(queries)), self._sides.query, self._lists, where)
        for start in range(0, most * number, self._pairs):
            query, item = np.divmod(np.arange(start, min(start + self._pairs, len(queries) * number)), number)
            parts = [(rows.take(query), self._sides.query), (self._rows.take(item), self._sides.item)]
            if self._sides.both.columns:
                parts.append((self._of_both(queries, query, item), self._sides.both))
            yield padded(joined(parts, self._model.features), self._pairs, self._model.features)

    def _of_both(self, queries: pa.Table, query: np.ndarray, item: np.ndarray) -> Rows:
        pairs, both = paired(queries, self._items.table, self._sides.both.columns, query, item), self._sides.both
        lists = lists_of(both, {pairs.schema: "pairs"})
        return decoded(pairs, range(len(query)), both, lists, lambda row: f"item {self._items.ids[item[row]]}")


def _where_query(queries: pa.Table, row: int) -> str:
    return f"user {queries[USER][row]}"
