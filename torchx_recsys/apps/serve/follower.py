"""Follows current.json: loads each export that it names, while the previous one is served."""

import asyncio
import gc
import sys

from torchx_recsys.apps.export.load import Changes, Export
from torchx_recsys.apps.export.source import Source
from torchx_recsys.apps.serve.batching import Batcher
from trainer.core.secrets import without_secrets


class Follower:
    """Keeps a server at the newest export.

    Args:
        batcher: Has the model that is served.
        source: The exports.
        poll_seconds: Interval between looks at current.json.
    """

    def __init__(self, batcher: Batcher, source: Source, poll_seconds: float) -> None:
        self._batcher, self._source, self._poll_seconds = batcher, source, poll_seconds
        self._told = ""

    async def work(self) -> None:
        """Takes over exports forever."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self._look()
                self._told = ""
            except Exception as error:  # whatever the fault of an export, the previous one stays in service
                self._tell(error)

    async def _look(self) -> None:
        served = self._batcher.model
        newest = await asyncio.to_thread(self._source.newest)
        if newest.crc32 == served.export.crc32:
            return
        chain = await asyncio.to_thread(self._source.chain)
        places = [place for place, export in enumerate(chain) if export.crc32 == served.export.crc32]
        if places and served.tensors:
            await self._apply(chain[places[0] + 1 :])
        else:
            await self._replace(chain)

    async def _apply(self, exports: list[Export]) -> None:
        """Changes the model between two batches, once all changes are in memory."""
        model, changes = self._batcher.model, await asyncio.to_thread(self._prepare, exports)

        def apply() -> None:
            for one in changes:
                model.apply(one)

        seconds = await self._batcher.between_batches(apply)
        self._report(f"{sum(one.rows for one in changes):,} rows changed", exports, seconds)

    def _prepare(self, exports: list[Export]) -> list[Changes]:
        """Returns changes, with the rows to change loaded into the processor's caches: applied in half the time."""
        tensors, found = self._batcher.model.tensors, self._source.read_changes(exports)
        for changes in found:
            for name, (rows, _) in changes.tensors.items():
                if rows is not None:
                    tensors[name].detach().index_select(0, rows)
        return found

    async def _replace(self, chain: list[Export]) -> None:
        """Loads a new model beside the served one. Each request is computed by the model that read its columns."""
        self._batcher.model = await asyncio.to_thread(self._source.load, chain)
        self._report("all rows changed", chain, 0.0)
        await asyncio.to_thread(gc.collect)  # frees the previous model, whose program has circular references

    def _report(self, changed: str, exports: list[Export], seconds: float) -> None:
        step = self._batcher.model.signature["step"]
        size = sum(entry["bytes"] for export in exports for entry in export.files.values())
        read, between = f"{size / 2**20:,.1f} MiB read", f"{1000 * seconds:.1f} ms between batches"
        print(f"step {step:,} is served: {changed}, {read}, {between}", flush=True)

    def _tell(self, error: Exception) -> None:
        """Reports once why the previous export is still served."""
        reason = next(iter(without_secrets(error).splitlines()), type(error).__name__)
        line = f"step {self._batcher.model.signature['step']:,} is still served: {reason}"
        if line != self._told:
            print(line, file=sys.stderr, flush=True)
        self._told = line
