"""`python -m trainer serve`: a small HTTP endpoint for an exported model."""

import asyncio
import contextlib
import json
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pydantic

from apps.export.directory import CURRENT, MANIFEST
from apps.export.load import ONNX, Model, load
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.storage import named

if TYPE_CHECKING:
    import uvicorn


def serve(
    directory: str,
    host: str = "localhost",
    port: int = 8000,
    compiled: bool = False,
    wait_ms: pydantic.NonNegativeFloat = 2.0,
    batch_samples: pydantic.PositiveInt = 4096,
) -> None:
    """Serves an exported model over HTTP, to look at it, until it gets SIGTERM or SIGINT.

    POST /predict takes {"columns": {NAME: [VALUE, ...]}} and returns {"outputs": {NAME: [VALUE, ...]}}; GET /signature
    describes both, GET /health tells that it serves. Requests that come close together are answered in one batch.

    Args:
        directory: What `export` wrote to, or one step-N of it, any fsspec URL.
        host: Address to serve at; 0.0.0.0 lets other hosts connect.
        port: Port to serve at; 0 for a free one.
        compiled: Run the compiled model, which an export with --compile has.
        wait_ms: Milliseconds that a request waits for others.
        batch_samples: Samples of a batch, and of one request, at most.

    Raises:
        InputError: The directory is no whole export, the port is taken, or a package is not installed.
    """
    try:
        import uvicorn

        from apps.serve.http import make_app
    except ImportError as error:
        raise InputError(f"serve needs the package {error.name}; pip install 'torchx-recsys[serve]'") from error
    with _local(directory) as folder:
        model = _load(directory, folder, compiled)
        app = make_app(model, wait_ms / 1000, batch_samples)
        with _listen(host, port) as listening:
            address, number = listening.getsockname()[:2]
            print(f"step {model.signature['step']:,} is served at http://{address}:{number}", flush=True)
            settings = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=30)
            asyncio.run(_run(settings, listening))
    print("stopped", flush=True)


def _load(directory: str, folder: Path, compiled: bool) -> Model:
    try:
        model = load(folder, compiled, verify=True)
    except (ValueError, ImportError) as error:
        raise InputError(f"--directory is '{directory}', which cannot be served: {error}") from error
    if model.signature.get("format") == "onnx":
        raise InputError(
            f"--directory is '{directory}', which holds {ONNX}; export with --format torch to serve it here"
        )
    return model


@contextlib.contextmanager
def _local(url: str) -> Iterator[Path]:
    """Yields a local folder with the files of an export."""
    target = RunDirectory(url, "--directory")
    with named("--directory", url):
        current = target.read(CURRENT)
        names = [] if current is None else [json.loads(current)["directory"]]
        manifest = target.read(*names, MANIFEST)
        if manifest is None:
            raise InputError(
                f"--directory is '{url}', which holds no whole export; make one by `python -m trainer export`"
            )
        if target.fs.is_local:
            yield Path(target.path(*names))
            return
        with tempfile.TemporaryDirectory() as folder:
            for name in [*json.loads(manifest)["files"], MANIFEST]:
                file = Path(folder, name)
                file.parent.mkdir(exist_ok=True)
                target.fs.get_file(target.path(*names, name), str(file))
            yield Path(folder)


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket. Opened here to report a taken port in one line."""
    try:
        return socket.create_server((host, port), backlog=4096)
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
