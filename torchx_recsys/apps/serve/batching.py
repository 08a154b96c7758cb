"""Batches requests: requests that arrive within a few milliseconds go through the model together."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchx_recsys.apps.export.load import Model

Columns = dict[str, Tensor]


@dataclass(frozen=True)
class PendingRequest:
    """A waiting request.

    Attributes:
        model: The model that turned columns into the inputs, and computes the outputs.
        inputs: The inputs.
        samples: Number of samples.
        outputs: Receives the outputs.
    """

    model: Model
    inputs: Columns
    samples: int
    outputs: asyncio.Future[Columns]


class Batcher:
    """Joins requests into batches. A thread computes one batch at a time.

    Args:
        model: The model.
        wait_seconds: How long the first request of a batch waits for others.
        samples: Most samples of a batch, unless a single request has more.

    Attributes:
        model: The model for new requests. A waiting request keeps its model, with any changes applied meanwhile.
    """

    def __init__(self, model: Model, wait_seconds: float, samples: int) -> None:
        self.model, self._wait, self._samples = model, wait_seconds, samples
        self._queue: asyncio.Queue[PendingRequest] = asyncio.Queue()
        self._turn = asyncio.Lock()  # held by a batch, or by a call between two batches

    async def answer(self, model: Model, inputs: Columns, samples: int) -> Columns:
        """Returns the outputs for inputs.

        Args:
            model: The model that made the inputs.
            inputs: The inputs, in the model's order.
            samples: Number of samples.
        """
        request = PendingRequest(model, inputs, samples, asyncio.get_running_loop().create_future())
        self._queue.put_nowait(request)
        return await request.outputs

    async def between_batches(self, act: Callable[[], None]) -> float:
        """Calls a function in a thread while no batch is computed, and returns the seconds that the function took."""
        async with self._turn:
            start = time.perf_counter()
            await asyncio.to_thread(act)
            return time.perf_counter() - start

    async def work(self) -> None:
        """Answers requests forever."""
        first = await self._queue.get()
        while True:
            batch, first = await self._collect(first)
            await self._compute(batch)
            first = first or await self._queue.get()

    async def _collect(self, first: PendingRequest) -> tuple[list[PendingRequest], PendingRequest | None]:
        """Returns a batch, and the first request that did not fit."""
        batch, samples = [first], first.samples
        end = asyncio.get_running_loop().time() + self._wait
        while samples < self._samples:
            try:
                async with asyncio.timeout_at(end):
                    request = await self._queue.get()
            except TimeoutError:
                break
            if samples + request.samples > self._samples or request.model is not first.model:
                return batch, request
            batch.append(request)
            samples += request.samples
        return batch, None

    async def _compute(self, batch: list[PendingRequest]) -> None:
        inputs = {name: torch.cat([request.inputs[name] for request in batch]) for name in batch[0].inputs}
        try:
            async with self._turn:
                outputs = await asyncio.to_thread(_without_gradients, batch[0].model, inputs)
        except Exception as error:
            for request in batch:
                if not request.outputs.done():
                    request.outputs.set_exception(error)
            return
        sizes = [request.samples for request in batch]
        parts = zip(*(output.split(sizes) for output in outputs.values()), strict=True)
        for request, part in zip(batch, parts, strict=True):
            if not request.outputs.done():  # the client may have gone
                request.outputs.set_result(dict(zip(outputs, part, strict=True)))


def _without_gradients(model: Model, inputs: Columns) -> Columns:
    with torch.inference_mode():
        return model.run(inputs)
