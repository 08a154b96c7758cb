"""The HTTP endpoint: turns requests into columns, outputs into responses, mistakes into one line."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from torch import Tensor

from torchx_recsys.apps.export.load import ColumnError, Model
from torchx_recsys.apps.serve.batching import Batcher
from trainer.core.errors import InputError

# Starlette, not FastAPI: FastAPI makes schemas from classes, but the columns are known only once a model is loaded.
# Not the standard library's server either: it uses a thread for each connection.
LARGEST_BODY = 16 << 20


class Answer(JSONResponse):
    """A response of JSON in ASCII: a refused name may contain half a character, which UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        """Returns the body."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def make_app(
    batcher: Batcher,
    samples: int,
    tasks: Sequence[Callable[[], Coroutine[Any, Any, None]]],
    lists: Callable[[Any], Coroutine[Any, Any, Any]] | None = None,
) -> Starlette:
    """Returns the application.

    Args:
        batcher: Answers requests.
        samples: Most samples of a request.
        tasks: Tasks that run as long as the application.
        lists: Answers the content of a request for lists of items. Unset: there are no items.
    """

    @contextlib.asynccontextmanager
    async def working(_: Starlette) -> AsyncIterator[None]:
        workers = [asyncio.create_task(work()) for work in (batcher.work, *tasks)]
        yield
        for worker in workers:
            worker.cancel()

    async def predict(request: Request) -> Answer:
        body, model = await _body(request), batcher.model
        # In threads: a large request takes seconds, and small requests are answered meanwhile.
        inputs, count = await asyncio.to_thread(_inputs, model, body, samples)
        outputs = await batcher.answer(model, inputs, count)
        return await asyncio.to_thread(_answer, outputs)

    async def recommend(request: Request) -> Answer:
        body = await _body(request)
        if lists is None:
            raise HTTPException(400, "this server has no items to list; start it with --items FILES")
        return Answer(await lists(await asyncio.to_thread(_content, body)))

    async def health(_: Request) -> Answer:
        signature = batcher.model.signature
        return Answer({"status": "ok", "model": signature["model"], "step": signature["step"]})

    async def signature(_: Request) -> Answer:
        return Answer(batcher.model.signature)

    routes = [
        Route("/predict", predict, methods=["POST"]),
        Route("/recommend", recommend, methods=["POST"]),
        Route("/health", health),
        Route("/signature", signature),
    ]
    return Starlette(
        routes=routes,
        lifespan=working,
        exception_handlers={
            ColumnError: _wrong_columns,
            InputError: _wrong_columns,
            HTTPException: _wrong,
            ClientDisconnect: _gone,
        },
    )


async def _body(request: Request) -> bytearray:
    """Returns the body of a request; stops reading beyond the largest request that is answered."""
    too_large = HTTPException(413, f"the body has more than {LARGEST_BODY} bytes; send fewer samples at once")
    if int(request.headers.get("content-length", 0)) > LARGEST_BODY:
        raise too_large
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise too_large
    return body


def _inputs(model: Model, body: bytearray, most: int) -> tuple[dict[str, Tensor], int]:
    """Returns the inputs of a body, and the number of its samples, which are counted first."""
    columns = _columns(body)
    first = next(iter(columns.values()), None)
    count = len(first) if isinstance(first, list) else 0
    if count > most:
        raise HTTPException(413, f"{count} samples are more than the {most} that are answered at once")
    return model.inputs(columns), count


def _columns(body: bytearray) -> dict[str, Any]:
    """Returns the columns of a body, `{"columns": {NAME: [VALUE, ...]}}`."""
    content = _content(body)
    if not isinstance(content, dict) or [*content] != ["columns"] or not isinstance(content["columns"], dict):
        raise HTTPException(400, 'the body must be {"columns": {NAME: [VALUE, ...]}}; /signature names the columns')
    return content["columns"]


def _content(body: bytearray) -> Any:
    """Returns the JSON of a body."""
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise HTTPException(400, f"the body is not JSON: {reason}") from error


def _answer(outputs: dict[str, Tensor]) -> Answer:
    _check_finite(outputs)
    return Answer({"outputs": {name: output.tolist() for name, output in outputs.items()}})


def _check_finite(outputs: dict[str, Tensor]) -> None:
    """Refuses samples for which the model computes NaN or infinity, which JSON cannot hold."""
    for name, output in outputs.items():
        if not (good := output.isfinite()).all():
            row, *_ = (~good).nonzero()[0].tolist()
            raise HTTPException(
                400, f"row {row}: {name} is {output[~good][0]}; its numbers are too large for the model in float32"
            )


async def _wrong_columns(_: Request, error: Exception) -> Answer:
    return Answer({"error": str(error)}, 400)


async def _wrong(request: Request, error: Exception) -> Answer:
    assert isinstance(error, HTTPException)
    known = {404: "there are /predict, /recommend, /health and /signature", 405: f"{request.url.path} does not take it"}
    message = f"{request.method} {request.url.path}: {known[error.status_code]}" if error.status_code in known else None
    return Answer({"error": message or error.detail}, error.status_code, error.headers)


async def _gone(_: Request, __: Exception) -> Answer:
    """Returns a response that nobody reads: a client that disconnects while sending is not an error to report."""
    return Answer(None, 499)
