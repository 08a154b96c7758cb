"""Measures a server that applies deltas under load.

Writes docs/guides/serve.md.
Takes ten minutes of a quiet machine, and 4 GB of disk.

The server is a process of its own, which follows a directory of exports. Requests come at fixed times, whether those
before are answered or not; windows in which a delta is taken over take turns with windows in which nothing is.
"""

import argparse
import asyncio
import gc
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
import torch

from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.export.delta import keep_changes
from torchx_recsys.apps.export.directory import CURRENT, publish, write_manifest
from torchx_recsys.apps.export.load import Export, load
from torchx_recsys.apps.export.program import save_program

PAGE = ROOT / "docs" / "guides" / "serve.md"
FEATURES, COLUMNS, ROWS = 4, 64, 4096
RATE = 200  # requests per second, each with one sample
WHOLE = 3  # number of whole exports loaded after the deltas
WITHOUT, DELTA, LOADED = "nothing", "a delta", "a whole export"
SERVED = re.compile(r"at (http://\S+)")
TAKEN_OVER = re.compile(r"step \S+ is served: (\S+) rows changed, (\S+) MiB read, (\S+) ms between batches")


def main() -> None:
    """Measures and rewrites the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table-rows", type=int, default=1_000_000, help=f"of each of {FEATURES} tables")
    parser.add_argument("--deltas", type=int, default=20)
    parser.add_argument("--changed", type=float, default=0.01, help="part of the rows that a delta changes")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a window")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        exports = Exports(Path(folder), arguments.table_rows, arguments.changed)
        for _ in range(arguments.deltas):
            exports.add()
        write_measured(PAGE, "serving-deltas", measure(exports, Path(folder, "output"), arguments.seconds))


class Exports:
    """A whole export and its deltas.

    Args:
        folder: The folder of all files.
        table_rows: Rows of each table.
        changed: The part of the rows that each delta changes.

    Attributes:
        directory: The directory of the exports.
        columns: Samples.
        answers: The outputs of each full export for the samples.
        mib: Size of the weights.
    """

    def __init__(self, folder: Path, table_rows: int, changed: float) -> None:
        self.directory, self._folder, self._changed = folder / "exports", folder, changed
        self._trained = trained(folder, table_rows)
        self._program = torch.export.load(self._trained / "model.pt2")
        self._generator = torch.Generator().manual_seed(0)
        self.columns: dict[str, list[Any]] = json.loads((self._trained / "parity.json").read_text())["columns"]
        self.answers: list[dict[str, Any]] = []
        self.mib = sum(weight.nbytes for weight in self._program.state_dict.values()) / 2**20
        self._publish(self._written(), None)

    def add(self) -> None:
        """Adds a delta."""
        for weight in self._program.state_dict.values():
            rows = torch.randint(len(weight), (int(len(weight) * self._changed) + 1,), generator=self._generator)
            weight.data[rows] += 0.01 * torch.randn(weight[rows].shape, generator=self._generator)
        folder = self._written()
        self._publish(folder, keep_changes(folder, str(self.directory)).predecessor)

    def name(self, number: int) -> None:
        """Names an export in current.json."""
        (self.directory / "next").write_text(json.dumps({"directory": f"step-{number}"}))
        (self.directory / "next").rename(self.directory / CURRENT)

    def _written(self) -> Path:
        """Writes a full export without a manifest, once its answers are kept."""
        step = len(self.answers)
        folder = Path(tempfile.mkdtemp(dir=self._folder), f"step-{step}")
        folder.mkdir()
        for name in ("signature.json", "parity.json", "load.py"):
            (folder / name).write_bytes((self._trained / name).read_bytes())
        signature = json.loads((folder / "signature.json").read_text())
        (folder / "signature.json").write_text(json.dumps(signature | {"step": step}))
        save_program(self._program, folder / "model.pt2")
        write_manifest(folder, "", {})
        self.answers.append({name: found.tolist() for name, found in load(folder)(self.columns).items()})
        gc.collect()  # frees the program, which has circular references
        return folder

    def _publish(self, folder: Path, predecessor: Export | None) -> None:
        write_manifest(folder, "", {}, predecessor)
        publish(folder, str(self.directory), folder.name, before=None)
        for file in folder.iterdir():
            file.unlink()
        gc.collect()


def trained(folder: Path, table_rows: int) -> Path:
    """Trains a model for a step and returns its export."""
    random, names = np.random.default_rng(0), [f"s{i}" for i in range(FEATURES)]
    ids = {name: random.integers(0, table_rows, ROWS) for name in names}
    others = {"d0": random.standard_normal(ROWS), "label": random.integers(0, 2, ROWS).astype(np.float32)}
    pq.write_table(pa.table(ids | others), folder / "rows.parquet")
    files = [str(folder / "rows.parquet")]
    sparse = {name: {"rows": table_rows} for name in names}
    data = {"train": files, "validation": files, "global_batch_size": 1024, "dense": {"d0": {}}, "sparse": sparse}
    model = {"embedding_dim": COLUMNS, "dense_layers": [128, 64], "over_layers": [256, 128]}
    tree = {"data": data, "model": model, "train": {"steps": 1}, "optimizer": {"sparse": {"name": "sgd"}}}
    config, out, to = str(folder / "config.toml"), str(folder / "run"), str(folder / "trained")
    Path(config).write_text(tomli_w.dumps(tree))
    for words in (["train", config, "--out", out], ["export", config, "--out", out, "--to", to]):
        subprocess.run([sys.executable, "-m", "trainer", *words], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return Path(to, "step-1")


def measure(exports: Exports, output: Path, seconds: float) -> str:
    """Returns the table, of a server that takes over the deltas."""
    exports.name(0)
    gc.freeze()  # collecting torch's objects in this process would delay the requests
    with served(exports.directory, output) as url:
        windows = asyncio.run(ask(url, exports, output, seconds))
    deltas = [found for found in TAKEN_OVER.findall(output.read_text())[: len(exports.answers) - 1]]
    times, rows = [float(between) for _, _, between in deltas], []
    for name, found in windows.items():
        p50, p99, longest = np.percentile(np.concatenate(found), [50, 99, 100])
        rows.append([name, sum(map(len, found)), p50, p99, median_p99(found), longest])
    without, delta = rows[:2]
    ratio, ratio_of_medians = delta[3] / without[3], delta[4] / without[4]
    headers = ["Taken over", "Requests", "p50 ms", "p99 ms", "p99 ms of the median window", "longest ms"]
    shown = [[name, f"{requests:,}", *(f"{value:.1f}" for value in values)] for name, requests, *values in rows]
    machine = describe_machine()
    return (
        f"{table(headers, shown)}\n\n"
        f"{len(deltas)} deltas of {deltas[0][0]} rows and {deltas[0][1]} MiB, {WHOLE} whole exports of "
        f"{exports.mib:,.0f} MiB; {RATE} requests a second, none of which failed. After each export the answers were "
        f"those of the full one, bit for bit. p99 with a delta is {ratio:.2f} times p99 with nothing, "
        f"{ratio_of_medians:.2f} times in the median window. A delta took {np.median(times):.1f} ms between two "
        f"batches, at most {max(times):.1f} ({machine['processor']}, {machine['cores']} cores for server and clients, "
        f"torch {torch.__version__})."
    )


def median_p99(windows: list[list[float]]) -> float:
    """Returns the median of the 99th percentiles of windows, which other work on the machine disturbs less."""
    return float(np.median([np.percentile(window, 99) for window in windows]))


@contextmanager
def served(directory: Path, output: Path) -> Iterator[str]:
    """Serves a directory, follows it, and yields the URL."""
    command = [sys.executable, "-m", "trainer", "serve", "--directory", str(directory), "--port", "0"]
    flags = ["--follow", "True", "--poll-seconds", "0.5"]
    with output.open("w") as file, subprocess.Popen([*command, *flags], cwd=ROOT, stdout=file) as process:
        while not (found := SERVED.search(output.read_text())):
            assert process.poll() is None
            time.sleep(0.1)
        try:
            yield found[1]
        finally:
            process.terminate()


async def ask(url: str, exports: Exports, output: Path, seconds: float) -> dict[str, list[list[float]]]:
    """Returns the milliseconds of all requests by kind of window, and checks the answers after each."""
    found: dict[str, list[list[float]]] = {WITHOUT: [], DELTA: [], LOADED: []}
    last = len(exports.answers) - 1
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def take(kind: str, number: int) -> None:
            """Measures a window in which an export is named, and checks the answers afterwards."""
            before = len(TAKEN_OVER.findall(output.read_text()))
            exports.name(number)
            found[kind].append(await window(session, url, exports, seconds))
            while len(TAKEN_OVER.findall(output.read_text())) == before:
                await asyncio.sleep(0.1)
            answers = await post(session, url, exports.columns)
            assert answers == exports.answers[number], f"other answers than those of full export {number}"

        await window(session, url, exports, seconds)  # warms up
        for number in range(1, last + 1):
            found[WITHOUT].append(await window(session, url, exports, seconds))
            await take(DELTA, number)
        for number in range(last - 1, last - 1 - WHOLE, -1):  # backwards, where no delta leads
            await take(LOADED, number)
    return found


async def window(session: aiohttp.ClientSession, url: str, exports: Exports, seconds: float) -> list[float]:
    """Sends requests at fixed times and returns the milliseconds from then to each answer."""
    count, samples, start = int(RATE * seconds), len(exports.columns["d0"]), time.perf_counter()

    async def one(number: int) -> float:
        due = start + number / RATE
        await asyncio.sleep(due - time.perf_counter())
        row = number % samples
        await post(session, url, {name: values[row : row + 1] for name, values in exports.columns.items()})
        return 1000 * (time.perf_counter() - due)

    return await asyncio.gather(*(one(number) for number in range(count)))


async def post(session: aiohttp.ClientSession, url: str, columns: dict[str, list[Any]]) -> dict[str, Any]:
    """Returns the outputs; fails if the server fails."""
    async with session.post(f"{url}/predict", json={"columns": columns}) as response:
        content = await response.json()
        assert response.status == 200, content
        return content["outputs"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
