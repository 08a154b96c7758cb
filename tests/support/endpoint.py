"""The endpoint of `serve` in a process of its own."""

import asyncio
import json
import re
import time
from pathlib import Path

import aiohttp
from command import start_trainer


class Served:
    """The endpoint in a process of its own; `flags` are more flags of `serve`."""

    def __init__(self, directory: Path, folder: Path, *flags: object) -> None:
        self.output, self.errors = folder / "output", folder / "errors"
        words = ["serve", "--directory", directory.parent, "--port", "0", "--batch-samples", "256", *flags]
        self.process = start_trainer(words, self.output, self.errors, 0)
        end = time.monotonic() + 600
        while not (found := re.search(r"at (http://\S+)", self.output.read_text() if self.output.exists() else "")):
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < end
            time.sleep(0.1)
        self.url = found[1]

    def ask(self, *bodies, method="POST", path="/predict"):
        """Returns the status and the content of each response; all requests are on the way at once."""

        async def one(session, body):
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            async with session.request(method, self.url + path, data=data) as response:
                return response.status, await response.json()

        async def every():
            connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(120)
            async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                return await asyncio.gather(*(one(session, body) for body in bodies))

        return asyncio.run(every())
