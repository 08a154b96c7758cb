"""`python -m trainer serve`: a small HTTP endpoint for an exported model."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

import pydantic

from torchx_recsys.apps.export.source import Source
from trainer.core.errors import InputError

if TYPE_CHECKING:
    import uvicorn

    from torchx_recsys.apps.serve.batching import Batcher


def serve(
    directory: str,
    host: str = "localhost",
    port: int = 8000,
    compiled: bool = False,
    wait_ms: pydantic.NonNegativeFloat = 2.0,
    batch_samples: pydantic.PositiveInt = 4096,
    follow: bool = False,
    poll_seconds: pydantic.PositiveFloat = 5.0,
    items: tuple[str, ...] = (),
    item_column: str | None = None,
    show: tuple[str, ...] | None = None,
    output: str | None = None,
) -> None:
    """Serves an exported model over HTTP, for trying it out, until SIGTERM or SIGINT.

    POST /predict takes {"columns": {NAME: [VALUE, ...]}} and returns {"outputs": {NAME: [VALUE, ...]}}; GET /signature
    describes both, GET /health answers while it serves. Requests that come close together are computed in one batch.

    With items, POST /recommend takes {"columns": {NAME: [VALUE, ...]}, "k": 10, "exclude": [[ID, ...], ...]}, with the
    columns of queries, and returns {"lists": {"item": [[ID, ...], ...], "score": ..., and the columns to show}}.

    Args:
        directory: The directory of exports, or one step-N of it, any fsspec URL.
        host: Address to serve at; 0.0.0.0 lets other hosts connect.
        port: Port to serve at; 0 for a free one.
        compiled: Run the compiled model, which an export with --compile has.
        wait_ms: Milliseconds that a request waits for others.
        batch_samples: Samples of a batch, and of one request, at most.
        follow: Take over each new export that DIRECTORY/current.json names, between two batches.
        poll_seconds: How often to look at current.json.
        items: Files, globs or directories with a row for each item, for /recommend, of any format by their names.
        item_column: Column of the items with their ids. Unset: the data.catalogue.id of the export.
        show: Columns of the items to show. Unset: title or name, if there is one.
        output: Output that scores items. Unset: the first.

    Raises:
        InputError: The directory is no whole export, the items cannot be used, the port is taken, or a package is not
            installed.
    """
    try:
        import uvicorn

        from torchx_recsys.apps.serve.batching import Batcher
        from torchx_recsys.apps.serve.follower import Follower
        from torchx_recsys.apps.serve.http import make_app
    except ImportError as error:
        raise InputError(f"serve needs the package {error.name}; pip install 'torchx-recsys[serve]'") from error
    source = Source(directory, compiled)
    batcher = Batcher(source.first(follow), wait_ms / 1000, batch_samples)
    tasks = [Follower(batcher, source, poll_seconds).work] if follow else []
    lists = _lists_of(batcher, items, item_column, show, output, batch_samples) if items else None
    app = make_app(batcher, batch_samples, tasks, lists)
    with _listen(host, port) as listening:
        address, number = listening.getsockname()[:2]
        print(f"step {batcher.model.signature['step']:,} is served at http://{address}:{number}", flush=True)
        settings = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=30)
        asyncio.run(_run(settings, listening))
    print("stopped", flush=True)


def _lists_of(
    batcher: "Batcher",
    items: tuple[str, ...],
    item_column: str | None,
    show: tuple[str, ...] | None,
    output: str | None,
    samples: int,
) -> "Callable[[Any], Coroutine[Any, Any, Any]]":
    """Returns what answers /recommend, with the items in memory; raises InputError."""
    from torchx_recsys.apps.engines.source import guess_reader
    from torchx_recsys.apps.recommend.exported import ExportedItems
    from torchx_recsys.apps.recommend.items import find_items, read_items
    from torchx_recsys.apps.serve.recommending import Recommender
    from trainer.config.data import DataConfig

    signature = batcher.model.signature
    column = item_column or signature.get("items", {}).get("id")
    if column is None:
        raise InputError("--item-column is not given, and the export names none; name the column of the items' ids")
    found = find_items("--items", items, column, show, DataConfig(reader=guess_reader(items, "--items")))
    read = read_items(found, None, None)
    print(f"{len(read):,} items for /recommend", flush=True)
    return Recommender(batcher, ExportedItems(signature, read, "--items", output), found.show, samples).answer


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Opened here to report a taken port in one line."""
    try:
        listening = socket.create_server((host, port), backlog=4096)
        # asyncio does not set it on a socket from outside, and an answer is two packets: the second would wait for the
        # acknowledgement of the first, 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listening
    except (OSError, OverflowError) as error:
        raise InputError(f"--host is '{host}' and --port {port}, where nothing can be served: {error}") from error


async def _run(settings: "uvicorn.Config", listening: socket.socket) -> None:
    """Serves until a signal comes, and then answers the pending requests."""
    import uvicorn

    class Server(uvicorn.Server):
        # uvicorn's own method raises the signal again at the end, so the process would end as if killed.
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    server = Server(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, setattr, server, "should_exit", True)
    await server.serve(sockets=[listening])
