"""Servers that do not do their work: one that never answers, one that is full, and a way to one that can be cut."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def hung() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


class _Full(BaseHTTPRequestHandler):
    def _refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(507, "Insufficient Storage")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST = do_PATCH = do_PUT = _refuse

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def full() -> Iterator[str]:
    """A server whose disk is full."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Full)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def nobody() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


class Way:
    """A way to a server, which the test can turn to another server, or away from all, while a job uses it.

    Attributes:
        url: Its address.
        to: The port to which new connections go; None closes them.
    """

    def __init__(self, to: int | None) -> None:
        self.to, self._open = to, set[socket.socket]()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def turn(self, to: int | None) -> None:
        """Cuts all connections; new ones go to another port."""
        self.to = to
        for one in [*self._open]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            here, _ = self._server.accept()
            if self.to is None:
                here.close()
                continue
            there = socket.create_connection(("127.0.0.1", self.to))
            self._open |= {here, there}
            for source, target in ((here, there), (there, here)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            self._open.discard(one)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
