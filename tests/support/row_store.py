"""A real Redis for tests, and exports with tables in shards whose rows and weights differ as tests wish."""

import json
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import redis
import torch
from deltas import name_current
from exported import export
from jobs import config, launch, write_rows
from ports import free_port

needs_redis = pytest.mark.skipif(not shutil.which("redis-server"), reason="needs: apt-get install redis-server")
SHARD_BYTES = 3000
STEP = 4


class Store:
    """A Redis.

    Args:
        options: Words for its command line.

    Attributes:
        url: Its URL.
    """

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = tempfile.TemporaryDirectory()  # where replication leaves a copy, which the next one would load
        words = ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no", "--loglevel", "warning"]
        words += ["--dir", self._folder.name]
        self.process = subprocess.Popen([*words, *options], stdout=subprocess.DEVNULL)

    def client(self, **options: object) -> redis.Redis:
        """Returns a client of the test's own."""
        return redis.Redis(port=self.port, protocol=2, **options)


@contextmanager
def redis_server(*options: str, password: str | None = None) -> Iterator[Store]:
    """Starts a Redis, and ends it after the block."""
    store = Store(*options, *(["--requirepass", password] if password else []))
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                with store.client(password=password) as client:
                    client.ping()
                break
            except redis.ConnectionError:
                assert time.monotonic() < deadline
                assert store.process.poll() is None
                time.sleep(0.02)
        yield store
    finally:
        store.process.kill()
        store.process.wait()


def first_export(folder: Path, **changes: object) -> Path:
    """Trains a small model and exports it with tables in shards; returns the directory step-N."""
    rows = write_rows(folder / "rows", [130])
    tree = config(rows, data__validation=[str(rows)], train__steps=STEP, **changes)
    launch([{"config": tree, "out": str(folder / "run")}], 1, folder)
    return export(folder, "run", folder / "exports", "--shard-bytes", SHARD_BYTES)


def next_export(before: Path, step: int, seed: int, share: float = 0.2, dense: bool = True) -> Path:
    """Makes an export beside another one, in which some rows and all dense weights are others; returns its directory.

    Args:
        before: The other one.
        step: The step of the new one.
        seed: Of the numbers.
        share: The share of rows that are others.
        dense: Whether the dense weights are others.
    """
    folder, random = before.parent / f"step-{step}", np.random.default_rng(seed)
    shutil.copytree(before, folder)
    for file in sorted(folder.glob("tables/*.bin")):
        content = bytearray(file.read_bytes())
        width = width_of(folder, file)
        rows = np.frombuffer(content, np.uint8).reshape(-1, width)
        chosen = random.random(len(rows)) < share
        fresh = random.standard_normal((chosen.sum(), width // 4)).astype(np.float32)
        rows[chosen] = fresh.view(np.uint8).reshape(-1, width)
        file.write_bytes(content)
    signature = json.loads((folder / "signature.json").read_text())
    (folder / "signature.json").write_text(json.dumps(signature | {"step": step}))
    if dense:
        _change_weights(folder / "model.pt2", seed)
    write_manifest(folder, f"{step} {seed}")
    name_current(folder.parent, folder.name)
    return folder


def _change_weights(file: Path, seed: int) -> None:
    program = torch.export.load(file)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in program.state_dict.values():
            weight.add_(0.1 * torch.randn_like(weight))
    program._example_inputs = None
    torch.export.save(program, file)


def width_of(folder: Path, file: Path) -> int:
    """Returns the bytes of a row in a file of a table."""
    name = file.relative_to(folder).as_posix()
    tables = json.loads((folder / "tables.json").read_text())["tables"].values()
    (entry,) = [one for one in tables if name in [part["name"] for part in one["files"]]]
    return entry["columns"] * {"float32": 4, "float16": 2}[entry["dtype"]]


def write_manifest(folder: Path, fingerprint: str) -> None:
    """Writes the manifest of changed files."""
    files = {
        file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "crc32": zlib.crc32(file.read_bytes())}
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != "manifest.json"
    }
    content = {"version": 1, "fingerprint": fingerprint, "files": files}
    (folder / "manifest.json").write_text(json.dumps(content, indent=2) + "\n")


def rows_of(folder: Path) -> dict[tuple[str, int], bytes]:
    """Returns the bytes of all rows of an export, by table and number."""
    found = {}
    for table, entry in json.loads((folder / "tables.json").read_text())["tables"].items():
        content = b"".join((folder / file["name"]).read_bytes() for file in entry["files"])
        size = len(content) // entry["rows"]
        found |= {(table, row): content[row * size : (row + 1) * size] for row in range(entry["rows"])}
    return found


def rows_in(client: redis.Redis, version: int, prefix: str = "model") -> dict[tuple[str, int], bytes]:
    """Returns the bytes of all rows of a version in the store: of each the greatest number up to that version."""
    found = {}
    for key in client.scan_iter(f"{prefix}:row:*", count=1000):
        table, _, row = key.decode().removeprefix(f"{prefix}:row:").rpartition(":")
        fields = {int(field): value for field, value in client.hgetall(key).items() if int(field) <= version}
        if fields and (value := fields[max(fields)]):
            found[table, int(row)] = value
    return found


def fields_in(client: redis.Redis, prefix: str = "model") -> int:
    """Returns how many values of rows the store has."""
    return sum(client.hlen(key) for key in client.scan_iter(f"{prefix}:row:*", count=1000))
