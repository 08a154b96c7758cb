"""A webhook and a mail server that keep what they get, and Apprise's configuration for them."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from aiosmtpd.controller import Controller
from ports import free_port


class Mailbox:
    """What was sent, in order: title and text."""

    def __init__(self) -> None:
        self.hooked: list[tuple[str, str]] = []
        self.mailed: list[str] = []

    async def handle_DATA(self, server, session, envelope) -> str:
        """Takes a mail."""
        self.mailed.append(envelope.content.decode())
        return "250 OK"


@contextmanager
def mailbox(folder: Path) -> Iterator[Mailbox]:
    """Serves a mailbox, and writes `apprise.yml` with the tags `hook`, `mail` and `dead` into a folder."""
    box = Mailbox()

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            box.hooked.append((content["title"], content["message"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Deaf(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            threading.Event().wait(60)

        def log_message(self, *_: object) -> None:
            pass

    hook, deaf = (ThreadingHTTPServer(("127.0.0.1", 0), handler) for handler in (Hook, Deaf))
    deaf.daemon_threads = True
    port = free_port()
    post = Controller(box, hostname="127.0.0.1", port=port)
    for server in (hook, deaf):
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    post.start()
    (folder / "apprise.yml").write_text(
        f"""urls:
  - json://user:hush@127.0.0.1:{hook.server_port}/hook:
    - tag: hook
  - mailto://127.0.0.1:{port}?from=torchx@example.org&to=team@example.org:
    - tag: mail
  - json://127.0.0.1:{deaf.server_port}/dead?rto=60&cto=60:
    - tag: dead
"""
    )
    yield box
    post.stop()
    for server in (hook, deaf):
        server.shutdown()
        server.server_close()
