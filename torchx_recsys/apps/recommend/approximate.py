"""The first k items by an index of faiss: its candidates, put in order by their exact scores."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from torchx_recsys.apps.recommend.top import BLOCK, NO_SCORE, SPARE, TopItems, by_closest_vector, first_by_score
from trainer.core.errors import InputError, first_line

KEY = "--index"
ANY_DIMENSION = 3360


def check_index(index: str | None, is_of_vectors: bool) -> None:
    """Refuses an index that faiss does not know; raises InputError.

    Whether an index suits the vectors shows only once they are there.
    """
    if index is None:
        return
    if not is_of_vectors:
        raise InputError(f"{KEY} is '{index}', but the model scores pairs, and has no vectors to search; leave it out")
    try:
        import faiss  # noqa: F401
    except ImportError as error:
        raise InputError(f"{KEY} needs the package {error.name}; pip install 'torchx-recsys[faiss]'") from error
    with _refused(index, "could not"):
        _made(index, ANY_DIMENSION)


def search_of(vectors: Tensor, index: str | None) -> "TopItems | IndexedItems":
    """Returns what finds items by their vectors: exactly, or by an index."""
    return TopItems(vectors) if index is None else IndexedItems(vectors, index)


class IndexedItems:
    """Finds items by the inner product of vectors, not always the first; as `TopItems`.

    Args:
        vectors: The vectors of the items, `[I, D]` float32.
        index: Words for faiss' index_factory, and after a semicolon parameters of the search.

    Raises:
        InputError: faiss does not make this index.
    """

    def __init__(self, vectors: Tensor, index: str) -> None:
        self._vectors = vectors.cpu()
        with _refused(index):
            self._index = _made(index, vectors.shape[1])
            self._index.train(self._vectors.numpy())
            self._index.add(self._vectors.numpy())

    def find(self, queries: Tensor, k: int, excluded: Tensor) -> tuple[Tensor, Tensor]:
        """Returns places of items and scores; a list is shorter where the index finds too few."""
        if queries.dim() == 3:
            return by_closest_vector(self.find, queries, k, excluded)
        queries, excluded, items = queries.cpu(), excluded.cpu(), len(self._vectors)
        most = int(excluded[:, 0].bincount().max()) if len(excluded) else 0
        number = min(items, k + SPARE + most)
        _, found = self._index.search(queries.numpy(), number)
        places = torch.from_numpy(found)
        row = torch.arange(len(queries))[:, None] * items
        is_out = (places < 0) | torch.isin(row + places, excluded[:, 0] * items + excluded[:, 1])
        exact = [
            (query.double()[:, None] * self._vectors[of_query.clamp(min=0)].double()).sum(2).float()
            for query, of_query in zip(*(one.split(self._rows(number)) for one in (queries, places)), strict=True)
        ]
        scores = torch.cat([torch.empty(0, number), *exact]).masked_fill(is_out, NO_SCORE)
        return first_by_score(scores, places, k)

    def _rows(self, number: int) -> int:
        """Returns how many queries are scored together."""
        return max(1, BLOCK // (number * self._vectors.shape[1]))


def _made(index: str, dimension: int) -> Any:
    """Returns an empty index of faiss; raises its RuntimeError."""
    import faiss

    factory, _, parameters = index.partition(";")
    found = faiss.index_factory(dimension, factory, faiss.METRIC_INNER_PRODUCT)
    if parameters:
        faiss.ParameterSpace().set_index_parameters(found, parameters)
    return found


@contextmanager
def _refused(index: str, about: str = "") -> Iterator[None]:
    """Turns a refusal of faiss whose message has some words into an InputError; lets others pass in silence."""
    try:
        yield
    except RuntimeError as error:
        if about in str(error):
            why = first_line(error).rpartition(": ")[2].rpartition("set_index_parameter:")[2]
            raise InputError(f"{KEY} is '{index}', of which faiss makes no index: {why}") from error
