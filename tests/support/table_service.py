"""A stand-in for a warehouse: tables over HTTP, in sessions whose splits can be read alone."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


class TableService:
    """Serves the rows of Parquet files, a table for each, on a free port.

    Attributes:
        url: Where it is.
        sessions: The sessions that were opened, in order.
        reads: How often a split was read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.sessions, self.reads = folder, [], 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "TableService":
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def open_session(self, table: str, columns: list[str], rows_per_split: int) -> dict:
        """Opens a session and returns its description."""
        found = pq.read_table(self._folder / f"{table}.parquet", columns=columns)
        splits = [found.slice(start, rows_per_split) for start in range(0, found.num_rows, rows_per_split)]
        self.sessions.append(splits)
        facts = {"id": len(self.sessions) - 1, "bytes": found.nbytes, "splits": [split.num_rows for split in splits]}
        return facts | {"schema": found.schema.serialize().to_pybytes().hex()}

    def read_split(self, session: int, split: int) -> bytes:
        """Returns a split as an Arrow stream."""
        self.reads += 1
        table, sink = self.sessions[session][split], pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(table)
        return sink.getvalue().to_pybytes()

    def _handler(service) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(json.dumps(service.open_session(**request)).encode())

            def do_GET(self):
                _, _, session, _, split = self.path.split("/")
                self._answer(service.read_split(int(session), int(split)))

            def _answer(self, content):
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        return Handler
