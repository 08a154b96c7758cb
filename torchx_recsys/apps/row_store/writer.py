"""Writes versions of a model to Redis. Only one publisher at a time can; protocol.py has how."""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from torchx_recsys.apps.row_store.connection import connect, facts_of, retried, store_errors
from torchx_recsys.apps.row_store.protocol import (
    BATCH_ROWS,
    LOCK_SECONDS,
    SCRIPTS,
    TRIP_ROWS,
    Keys,
    runs_of,
    value_at,
)
from torchx_recsys.apps.row_store.source import Changed, Rows, Table
from trainer.core.errors import InputError, StorageError
from trainer.core.secrets import place

if TYPE_CHECKING:
    from redis import Redis

KEY = "--to"
TIMEOUT_SECONDS = 30.0
WAITS = (0.5, 1.0, 2.0, 4.0, 8.0)  # seconds before each further attempt
WAIT_SECONDS = 600.0  # the longest wait for another publisher
POLL_SECONDS = 0.5


class LostStore(StorageError):
    """Another publisher took over, or the store has lost what was written."""


class Version:
    """A version in the store.

    Args:
        number: Its number.
        about: What it is: step, fingerprint, directory and so on.
        tables: Its tables by name.
    """

    def __init__(self, number: int, about: dict[str, Any], tables: dict[str, Table]) -> None:
        self.number, self.about, self.tables = number, about, tables


class RedisWriter:
    """The right to write versions of a model, while `alone` lasts.

    Args:
        url: The store.
        prefix: The beginning of the model's keys.

    Raises:
        InputError: The store cannot be used.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._url, self.keys = url, Keys(prefix)
        self._client: Redis = connect(url, KEY, TIMEOUT_SECONDS)
        self._scripts = {name: self._client.register_script(text) for name, text in SCRIPTS.items()}
        self._token = f"{socket.gethostname()}, process {os.getpid()}, {uuid.uuid4().hex[:12]}"
        self._number: int | None = None
        with self._errors():
            self._client.ping()
            self._check_kind()

    def _check_kind(self) -> None:
        """Refuses kinds of stores in which a version could not be kept whole."""

        def refuse(why: str) -> None:
            raise InputError(f"{KEY} is {place(self._url)}, {why}")

        if facts_of(self._client, "cluster").get("cluster_enabled"):
            refuse("which is a part of a cluster; name a Redis without cluster mode")
        replication = facts_of(self._client, "replication")
        if replication.get("role") == "slave":
            primary = f"{replication['master_host']}:{replication['master_port']}"
            refuse(f"which is a replica and takes no writes; name its primary, {primary}")
        policy = str(facts_of(self._client, "memory").get("maxmemory_policy", ""))
        if policy.startswith("allkeys"):
            refuse(f"which drops rows when its memory is full; set its maxmemory-policy, now {policy}, to noeviction")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keeps other publishers out, after waiting for one that writes; removes what a killed one left.

        Raises:
            StorageError: Another one writes for too long.
        """
        with self._errors():
            self._take()
            ended = threading.Event()
            threading.Thread(target=self._renew, args=(ended,), name="lock", daemon=True).start()
            try:
                self._clean()
                yield
            except BaseException:
                self._give_up()
                raise
            finally:
                ended.set()
                with suppress(Exception):  # it expires
                    self._run("release", waits=())

    def current(self) -> Version | None:
        """Returns the newest version; None if there is none.

        Raises:
            InputError: The keys are of something else.
        """
        with self._errors():
            text = self._call(lambda: self._client.get(self.keys.version))
            if text is None:
                return None
            try:
                number = int(text)
                about, tables = (
                    json.loads(one)
                    for one in self._call(lambda: self._client.mget(self.keys.about(number), self.keys.tables(number)))
                )
                return Version(number, about, {name: Table.of(entry) for name, entry in tables.items()})
            except (ValueError, TypeError, KeyError) as error:
                raise InputError(
                    f"{KEY} is {place(self._url)}, where {self.keys.version} and what it names are damaged or of "
                    f"something else; name another --prefix than '{self.keys.prefix}'"
                ) from error

    def begin(self) -> int:
        """Returns the number of a new version."""
        self._number = self._alone_run("begin")
        return self._number

    def write_file(self, name: str, parts: Iterator[bytes]) -> None:
        """Writes a file of the new version; `parts` have PART_BYTES, the last fewer."""
        for number, part in enumerate(parts):
            self._alone_run("file", f"{name}:{number}", part)

    def write_rows(self, table: str, changed: Changed) -> None:
        """Writes rows of the new version; a row without bytes is removed."""
        size, content = changed.rows.shape[1], changed.rows.tobytes()
        batches = []
        for start in range(0, len(changed.numbers), BATCH_ROWS):
            numbers = changed.numbers[start : start + BATCH_ROWS]
            words: list[Any] = [self._number, table, _chunk(table, numbers)]
            for at, number in enumerate(numbers.tolist(), start):
                words += (number, content[at * size : (at + 1) * size])
            batches.append(words)
        trip = TRIP_ROWS // BATCH_ROWS
        for start in range(0, len(batches), trip):
            for result in self._call(partial(self._send_rows, batches[start : start + trip])):
                self._checked(result)

    def _send_rows(self, batches: list[list[Any]]) -> list[int]:
        pipeline = self._client.pipeline(transaction=False)
        for words in batches:
            self._scripts["rows"](args=self._arguments(words), client=pipeline)
        return pipeline.execute()

    def remove_rows(self, table: str, first: int, end: int) -> None:
        """Removes rows that the new version does not have, once no version has them."""
        for start in range(first, end, TRIP_ROWS):
            numbers = np.arange(start, min(start + TRIP_ROWS, end))
            self.write_rows(table, Changed(numbers, np.empty((len(numbers), 0), np.uint8)))

    def move(self, about: dict[str, Any], tables: dict[str, Table]) -> None:
        """Completes the new version: from now on it is what readers take."""
        described = {
            name: {"rows": one.rows, "columns": one.columns, "dtype": one.dtype, "features": one.features}
            for name, one in tables.items()
        }
        self._alone_run("move", json.dumps(about), json.dumps(described))
        self._number = None

    def expire(self, keep: int) -> None:
        """Removes the versions before the newest ones, and rows that only they have."""
        while self._checked(self._run("expire", keep)) == 2:
            pass

    def kept(self) -> int:
        """Returns how many versions there are."""
        return self._call(lambda: self._client.llen(self.keys.versions))

    def rows_at(self, version: Version, table: str) -> "StoredRows":
        """Returns the rows of a table in a version, in order."""
        return StoredRows(lambda keys: self._call(lambda: self._read(keys)), self.keys, version, table)

    def listpack_bytes(self) -> int | None:
        """Returns the size of a value up to which a small hash is kept compact; None if the store does not tell."""
        import redis

        with suppress(redis.RedisError, ValueError, KeyError):
            name = "hash-max-listpack-value"
            return int(str(self._client.config_get(name)[name]))
        return None

    def _read(self, keys: list[str]) -> list[dict[bytes, bytes]]:
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hgetall(key)
        return pipeline.execute()

    def _take(self) -> None:
        deadline, told = time.monotonic() + WAIT_SECONDS, ""
        while (holder := self._run("take")) != 1:
            name = holder.decode(errors="replace").rpartition(",")[0] or "another publisher"
            if time.monotonic() > deadline:
                raise StorageError(
                    f"{KEY} is {place(self._url)}, to which {name} has been publishing for {WAIT_SECONDS:.0f} s; wait "
                    "for it, or stop it"
                )
            if name != told:
                print(f"{name} publishes there, or was killed a moment ago; waiting for it to end", flush=True)
            told = name
            time.sleep(POLL_SECONDS)

    def _renew(self, ended: threading.Event) -> None:
        while not ended.wait(LOCK_SECONDS / 3):
            with suppress(Exception):  # each write takes the lock again, or reports that it is lost
                self._run("renew", waits=())

    def _clean(self) -> None:
        left = sorted(map(int, self._call(lambda: self._client.smembers(self.keys.leftovers))))
        for number in left:
            print(f"version {number} was not completed; removing what there is of it", flush=True)
            while self._checked(self._run("clean", number)) == 2:
                pass

    def _give_up(self) -> None:
        """Removes what was written of a version that fails; what cannot be removed the next publisher removes."""
        if self._number is None:
            return
        with suppress(Exception):
            while self._run("discard", self._number, waits=()) == 2:
                pass

    def _alone_run(self, script: str, *words: Any) -> int:
        return self._checked(self._run(script, *([] if self._number is None else [self._number]), *words))

    def _checked(self, result: int) -> int:
        if result == 0:
            raise LostStore(
                f"{KEY} is {place(self._url)}, where another publisher took over, or which lost what was written; "
                "nothing is published by this one, publish again"
            )
        return result

    def _run(self, script: str, *words: Any, waits: tuple[float, ...] = WAITS) -> Any:
        return self._call(lambda: self._scripts[script](args=self._arguments(words)), waits)

    def _arguments(self, words: Iterable[Any]) -> list[Any]:
        return [self.keys.prefix, self._token, int(LOCK_SECONDS * 1000), *words]

    def _call(self, call: Callable[[], Any], waits: tuple[float, ...] = WAITS) -> Any:
        return retried(call, waits, lambda line: print(line, flush=True))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with store_errors(KEY, self._url):
            yield


def _chunk(table: str, numbers: np.ndarray) -> str:
    """Returns which rows are written, as the scripts read it."""
    return json.dumps({"table": table, "rows": runs_of(numbers)}, ensure_ascii=False)


class StoredRows:
    """The rows of a table in a version of a store, read in order.

    Args:
        read: Returns the fields of keys.
        keys: The keys of the model.
        version: The version.
        table: The table.

    Attributes:
        lost: The rows of the last read that the store has not, or has with another size.
    """

    def __init__(
        self, read: Callable[[list[str]], list[dict[bytes, bytes]]], keys: Keys, version: Version, table: str
    ) -> None:
        self._fetch, self._keys, self._version, self._table = read, keys, version, table
        self._size, self._next = version.tables[table].row_bytes, 0
        self.lost: list[int] = []

    def __enter__(self) -> "StoredRows":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read(self, rows: int) -> Rows:
        """Returns the next rows; lost ones as zeros."""
        values, self.lost = [], []
        for start in range(self._next, self._next + rows, TRIP_ROWS):
            numbers = range(start, min(start + TRIP_ROWS, self._next + rows))
            found = self._fetch([self._keys.row(self._table, number) for number in numbers])
            for number, fields in zip(numbers, found, strict=True):
                value = value_at(fields, self._version.number) or b""
                if len(value) != self._size:
                    self.lost.append(number)
                    value = bytes(self._size)
                values.append(value)
        self._next += rows
        return np.frombuffer(b"".join(values), np.uint8).reshape(-1, self._size)
