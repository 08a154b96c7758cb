"""Compares the search of `recommend`, exact and by an index, with torch's product and topk and faiss' flat index.

Writes docs/guides/recommend.md.
Takes a few minutes.
"""

import os
import statistics
import time
from functools import partial
from typing import NamedTuple

import faiss
import torch
from torch import Tensor

from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.recommend.approximate import IndexedItems
from torchx_recsys.apps.recommend.top import TopItems

PAGE = ROOT / "docs/guides/recommend.md"
ITEMS, USERS, DIMENSION, K = 100_000, 10_000, 64, 10
AT_ONCE = 1024  # queries, as `recommend` has them
REPEATS = 3
INDEX = "HNSW32;efSearch=200"


class Vectors(NamedTuple):
    """Vectors of length 1: of queries, `[U, D]`, and of items, `[I, D]`."""

    queries: Tensor
    items: Tensor


def main() -> None:
    """Measures all ways in turn and rewrites the table."""
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    vectors = _vectors(USERS, ITEMS)
    indexed = IndexedItems(vectors.items, INDEX)  # made once for all users, in time that is not counted
    ways = {
        "`recommend`": recommend,
        f'`recommend --index "{INDEX}"`': partial(by_index, indexed),
        "torch, product and topk": torch_topk,
        "faiss, `IndexFlatIP`": faiss_flat,
    }
    expected = in_float64(vectors)
    lines, seconds = [], {name: [] for name in ways}
    alike = {}
    for _ in range(REPEATS):
        for name, way in ways.items():
            start = time.process_time()
            found = way(vectors)
            seconds[name].append(time.process_time() - start)
            alike[name] = (found[:, :, None] == expected[:, None]).any(2).double().mean().item()
    first = statistics.median(seconds["`recommend`"])
    for name, each in seconds.items():
        median = statistics.median(each)
        lines.append([name, f"{USERS / median:,.0f}", f"{median / first:.2f}", f"{alike[name]:.2%}"])
    headers = ["Search", "Users per second of a core", "Speed of `recommend` over it", "Items as in float64"]
    sizes = f"{ITEMS:,} items, {USERS:,} users, vectors of {DIMENSION} numbers, the first {K}"
    how = f"one thread, processor time, medians of {REPEATS} repeats in turn, at a load of {os.getloadavg()[1]:.0f}"
    versions = f"{describe_machine()['processor']}, torch {torch.__version__}, faiss {faiss.__version__}"
    write_measured(PAGE, "search", f"{table(headers, lines)}\n\n{sizes}; {how} ({versions}).")


def _vectors(users: int, items: int) -> Vectors:
    random = torch.Generator().manual_seed(0)
    found = (torch.randn(number, DIMENSION, generator=random) for number in (users, items))
    return Vectors(*(torch.nn.functional.normalize(one) for one in found))


def in_float64(vectors: Vectors) -> Tensor:
    """Returns the first items of each query by scores in float64."""
    wide = vectors.items.double().T
    return torch.cat([(part.double() @ wide).topk(K).indices for part in _parts(vectors)])


def recommend(vectors: Vectors) -> Tensor:
    """Searches as `recommend` does."""
    top, nothing = TopItems(vectors.items), torch.empty(0, 2, dtype=torch.int64)
    return torch.cat([top.find(part, K, nothing)[0] for part in _parts(vectors)])


def by_index(items: IndexedItems, vectors: Vectors) -> Tensor:
    """Searches as `recommend` does with an index."""
    nothing = torch.empty(0, 2, dtype=torch.int64)
    return torch.cat([items.find(part, K, nothing)[0] for part in _parts(vectors)])


def torch_topk(vectors: Vectors) -> Tensor:
    """Searches by a product in float32 and topk."""
    return torch.cat([(part @ vectors.items.T).topk(K).indices for part in _parts(vectors)])


def faiss_flat(vectors: Vectors) -> Tensor:
    """Searches faiss' exact index."""
    index = faiss.IndexFlatIP(DIMENSION)
    index.add(vectors.items.numpy())
    return torch.cat([torch.from_numpy(index.search(part.numpy(), K)[1]) for part in _parts(vectors)])


def _parts(vectors: Vectors) -> tuple[Tensor, ...]:
    return vectors.queries.split(AT_ONCE)


if __name__ == "__main__":
    main()
