"""Answers which items a user will like: `uvicorn search:app`, then `curl 'localhost:8000/?user=7'`.

The query's tower is the exported model; the vectors of the items are in an index.
"""

import json
from pathlib import Path

import faiss
import numpy as np
import pyarrow.dataset as ds
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from torchx_recsys import load

EXPORT = Path("exports/tastes")
ITEMS = Path("runs/tastes-items")

model = load(EXPORT / json.loads((EXPORT / "current.json").read_text())["directory"])
items = ds.dataset(ITEMS, exclude_invalid_files=True).to_table().combine_chunks()
vectors = np.stack(items["vector"].to_numpy())
index = faiss.IndexHNSWFlat(vectors.shape[1], 16, faiss.METRIC_INNER_PRODUCT)
index.add(vectors)


def query(user: int) -> np.ndarray:
    """Returns the vector of a user, `[D]`; it does not depend on the columns of the item's tower."""
    return model({"user": [user], "item": [0], "genre": [0]})["liked_query"].numpy()[0]


def nearest(user: int, count: int) -> list[int]:
    """Returns the ids of the items that a user will like most, the best first."""
    _, places = index.search(query(user)[None], count)
    return items["id"].to_numpy()[places[0]].tolist()


def answer(request: Request) -> JSONResponse:
    """Answers a request."""
    user = int(request.query_params.get("user", 0))
    return JSONResponse({"user": user, "items": nearest(user, 10)})


app = Starlette(routes=[Route("/", answer)])
