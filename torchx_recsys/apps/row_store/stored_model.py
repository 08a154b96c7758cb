"""A model whose tables are in Redis, called like a loaded export."""

import contextlib
import gc
import json
import logging
import tempfile
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchx_recsys.apps.export.load import Model, load
from torchx_recsys.apps.row_store.connection import connect, retried, store_errors
from torchx_recsys.apps.row_store.protocol import Keys, value_at
from trainer.core.errors import InputError, StorageError
from trainer.core.secrets import place

if TYPE_CHECKING:
    from redis import Redis
    from torch import Tensor

LOG = logging.getLogger(__name__)
KEY = "the store"
WAITS = (0.05, 0.5)  # seconds before each further attempt to read
ATTEMPTS = 5  # to find a version that stays until it is loaded and its rows are read
READ_ROWS = 10_000  # rows of a round trip
LOAD_AGAIN_SECONDS = 5.0  # after a version could not be loaded


class _Expired(Exception):
    """The version of an answer is no longer there."""


class StoredModel:
    """A published model, whose rows are read from Redis at each call; a function from columns to outputs by name.

    Several threads may call it at once. A new version is loaded in the background, while answers are of the one before;
    each answer is of one version, and equal to that of the export, bit for bit.

    Args:
        url: redis://HOST:PORT/DATABASE, or rediss://; a replica will do. The variables REDIS_USERNAME and
            REDIS_PASSWORD have what the URL leaves out.
        prefix: The same as of `python -m trainer publish`.
        timeout_seconds: How long to wait for a connection, and for each answer of the store.

    Attributes:
        version: The number of the version that answers.

    Raises:
        InputError: The store cannot be used, or has no such model.
        StorageError: The store does not answer.
    """

    def __init__(self, url: str, prefix: str = "model", timeout_seconds: float = 5.0) -> None:
        self._url, self._keys = url, Keys(prefix)
        self._client: Redis = connect(url, KEY, timeout_seconds)
        self._lock = threading.Lock()
        self._loading: threading.Thread | None = None
        self._next: _Version | None = None
        self._not_before = 0.0
        self._held = self._load_newest()

    @property
    def version(self) -> int:
        """The number of the version that answers."""
        return self._held.number

    @property
    def signature(self) -> dict[str, Any]:
        """The signature of the version that answers, as `Model.signature`."""
        return self._held.model.signature

    def __call__(self, columns: dict[str, Any]) -> "dict[str, Tensor]":
        """Returns the outputs by name for columns.

        Raises:
            ColumnError: As for a loaded export.
            StorageError: The store does not answer, or has lost rows.
        """
        for _ in range(ATTEMPTS):
            held = self._take_over()
            try:
                return held.model(columns)
            except _Expired:
                LOG.warning("version %d of '%s' has expired; the newest is loaded", held.number, self._keys.prefix)
                self._replace(held)
        raise StorageError(
            f"{KEY} is {place(self._url)}, whose versions of '{self._keys.prefix}' expire before they are loaded; "
            "publish with a larger --keep"
        )

    def _take_over(self) -> "_Version":
        """Returns the version to answer from: a new one once it is loaded."""
        with self._lock:
            if self._next:
                self._held, self._next = self._next, None
            return self._held

    def _replace(self, expired: "_Version") -> None:
        if (loading := self._loading) and loading.is_alive():
            loading.join()
        with self._lock:
            if self._held is expired and not self._next:
                self._held = self._load_newest()

    def _saw(self, number: int) -> None:
        """Begins to load a version, unless that is under way."""
        with self._lock:
            is_under_way = (self._loading and self._loading.is_alive()) or self._next
            if number == self._held.number or is_under_way or time.monotonic() < self._not_before:
                return
            # No daemon: the process would end in the midst of torch's code, and abort.
            self._loading = threading.Thread(target=self._load_beside, name="version")
            self._loading.start()

    def _load_beside(self) -> None:
        try:
            found = self._load_newest()
            with self._lock:
                self._next = found
            gc.collect()  # programs of earlier versions have circular references
        except Exception as error:  # whatever the fault of a version, the one before answers
            self._not_before = time.monotonic() + LOAD_AGAIN_SECONDS
            LOG.warning("version %d of '%s' still answers: %s", self._held.number, self._keys.prefix, error)

    def _load_newest(self) -> "_Version":
        for _ in range(ATTEMPTS):
            if (number := self._call(lambda: self._client.get(self._keys.version))) is None:
                raise InputError(
                    f"{KEY} is {place(self._url)}, which has no model '{self._keys.prefix}'; publish one by "
                    "`python -m trainer publish`, or name another prefix"
                )
            with contextlib.suppress(_Expired):
                return _Version(int(number), self._client, self._keys, self._call, self._saw)
        raise StorageError(
            f"{KEY} is {place(self._url)}, whose versions of '{self._keys.prefix}' expire before they are loaded; "
            "publish with a larger --keep"
        )

    def _call(self, call: Callable[[], Any]) -> Any:
        with store_errors(KEY, self._url):
            return retried(call, WAITS, LOG.warning)


class _Version:
    """A version of a model: its programs in memory, its rows in the store.

    Args:
        number: Its number.
        client: The store.
        keys: The keys of the model.
        call: Calls a function that reads from the store, again if the store does not answer.
        saw: Takes the number of the newest version, after each call.

    Attributes:
        number: Its number.
        model: The model.

    Raises:
        _Expired: It is no longer there.
    """

    def __init__(
        self,
        number: int,
        client: "Redis",
        keys: Keys,
        call: Callable[[Callable[[], Any]], Any],
        saw: Callable[[int], None],
    ) -> None:
        self.number = number
        self._client, self._keys, self._call, self._saw = client, keys, call, saw
        self._about, tables = call(lambda: client.mget(keys.about(number), keys.tables(number)))
        if self._about is None:
            raise _Expired
        self._tables = {
            feature: (table, entry) for table, entry in json.loads(tables).items() for feature in entry["features"]
        }
        with tempfile.TemporaryDirectory() as folder:
            self._write_files(Path(folder))
            self.model: Model = load(folder, embeddings=self._embeddings)

    def _write_files(self, folder: Path) -> None:
        """Writes the files of the version, as an export without tables."""
        about = json.loads(self._about)
        for name, entry in about["files"].items():
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            crc32 = 0
            with file.open("wb") as sink:
                for part in range(max(1, -(-entry["bytes"] // about["part_bytes"]))):
                    content = self._part(f"{name}:{part}")
                    crc32 = zlib.crc32(content, crc32)
                    sink.write(content)
            if crc32 != entry["crc32"]:
                self._check_there()
                raise StorageError(f"{name} of version {self.number} is damaged in the store; publish again")
        (folder / "manifest.json").write_text(json.dumps({"files": about["files"]}))

    def _part(self, name: str) -> bytes:
        found = self._call(lambda: self._client.hget(self._keys.files(self.number), name))
        if found is None:
            self._check_there()
            raise StorageError(f"{name} of version {self.number} is missing in the store; publish again")
        return found

    def _check_there(self) -> None:
        if self._call(lambda: self._client.get(self._keys.about(self.number))) != self._about:
            raise _Expired

    def _embeddings(self, rows: "dict[str, Tensor]") -> "dict[str, Tensor]":
        """Returns the embeddings of rows by feature, `[N]` to `[N, D]` float32, all of this version."""
        import torch

        wanted: dict[str, set[int]] = {}
        for feature, one in rows.items():
            wanted.setdefault(self._tables[feature][0], set()).update(one.tolist())
        values = self._read([(table, row) for table, numbers in wanted.items() for row in numbers])
        found = {}
        for feature, one in rows.items():
            table, entry = self._tables[feature]
            content = bytearray().join(values[table, row] for row in one.tolist())
            dtype, shape = getattr(torch, entry["dtype"]), (len(one), entry["columns"])
            found[feature] = (
                torch.frombuffer(content, dtype=dtype).view(shape).float() if content else torch.empty(shape)
            )
        return found

    def _read(self, wanted: list[tuple[str, int]]) -> dict[tuple[str, int], bytes]:
        """Returns the bytes of rows.

        Raises:
            _Expired: The version was no longer there when they were read, so they may be of others.
            StorageError: A row is lost.
        """
        found: list[dict[bytes, bytes]] = []
        about = newest = None
        for start in range(0, max(1, len(wanted)), READ_ROWS):
            part = wanted[start : start + READ_ROWS]
            *fields, about, newest = self._call(lambda part=part: self._read_part(part))
            found += fields
        if about != self._about or newest is None:  # read after all rows
            raise _Expired
        self._saw(int(newest))
        values = {}
        for (table, row), fields in zip(wanted, found, strict=True):
            value = value_at(fields, self.number)
            if not value:
                raise StorageError(
                    f"row {row} of table '{table}' is missing in the store, in version {self.number}; publish again "
                    "with --all-rows True"
                )
            values[table, row] = value
        return values

    def _read_part(self, wanted: list[tuple[str, int]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for table, row in wanted:
            pipeline.hgetall(self._keys.row(table, row))
        pipeline.get(self._keys.about(self.number))
        pipeline.get(self._keys.version)
        return pipeline.execute()
