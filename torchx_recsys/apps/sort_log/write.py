"""Writes a sorted log: columns grow in files of their own, and become one record batch at the end."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.sort_log.digests import KEYS, Digests
from torchx_recsys.apps.sort_log.events import Events
from torchx_recsys.apps.sort_log.ties import Ties
from trainer.core.errors import InputError
from trainer.data.history.log import EVENTS, MANIFEST, USERS, VERSION
from trainer.rules.hashing import as_integers
from trainer.rules.plain_types import offsets_of

WIDE = pa.ipc.IpcWriteOptions(allow_64bit=True)  # a log may have more than 2^31 events


class LogWriter:
    """Writes a log.

    Args:
        events: The events.
        folder: A local directory for columns that are not finished.
        earlier: The last time of a log that this one continues, in the unit of the log.

    Attributes:
        rows: Events that were written.
        ties: Counts of those of the same moment.
    """

    def __init__(self, events: Events, folder: Path, earlier: int | None) -> None:
        self._events, self._folder, self._last_of_earlier = events, folder, earlier
        self._files: dict[str, BinaryIO] = {}
        self._types: dict[str, pa.DataType] = {}
        self._keys, self._counts = list[np.ndarray](), list[np.ndarray]()
        self._digests, self._earlier = Digests(), Digests()
        self._first, self._last, self.rows = np.iinfo(np.int64).max, np.iinfo(np.int64).min, 0
        self.ties = Ties()

    def write(self, batch: pa.RecordBatch) -> None:
        """Writes the next events: the user, the time, and the values."""
        users, times, *values = batch.columns
        keys, ticks = as_integers(users).astype(np.int64), times.to_numpy()
        begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        self._keys.append(keys[begins])
        self._counts.append(np.diff(np.append(begins, len(keys))))
        self._first, self._last = min(self._first, int(ticks.min())), max(self._last, int(ticks.max()))
        self.rows += len(keys)
        stays = None if self._last_of_earlier is None else ticks <= self._last_of_earlier
        self._note(KEYS, keys, stays)
        timestamps = pa.int64() if self._events.times_are_integers else pa.timestamp(self._events.unit)
        self._append(self._events.time, times.cast(timestamps), stays)
        written = [
            self._append(name, column, stays) for name, column in zip(batch.schema.names[2:], values, strict=True)
        ]
        self.ties.add(keys, ticks, written)

    def _append(self, name: str, column: pa.Array, stays: np.ndarray | None) -> np.ndarray:
        """Writes values of a column, and returns their bits."""
        width = column.type.bit_width // 8
        values = np.frombuffer(column.buffers()[1], f"u{width}", len(column), column.offset * width)
        if name not in self._files:
            self._files[name] = (self._folder / f"column-{len(self._files)}").open("wb")
            self._types[name] = column.type
        values.tofile(self._files[name])
        self._note(name, values, stays)
        return values

    def _note(self, name: str, values: np.ndarray, stays: np.ndarray | None) -> None:
        self._digests.add(name, values)
        if stays is not None:
            self._earlier.add(name, values[stays])

    def finish(self, stage: Path) -> dict[str, Any]:
        """Writes the files but the manifest; returns what is known of them.

        Raises:
            InputError: Two users have the same hash.
        """
        self.ties.finish()
        for file in self._files.values():
            file.close()
        texts = self._events.texts()
        names = {column: f"texts-{number}.arrow" for number, column in enumerate(texts)}
        for column, name in names.items():
            _write(stage / name, {"text": texts[column].cast(pa.large_string())})
        columns = {name: self._column(name, file) for name, file in self._files.items()}
        _write(stage / EVENTS, columns)
        counts = self._write_users(stage / USERS)
        return {
            "version": VERSION,
            "user": {"name": self._events.user, "kind": self._events.user_kind},
            "time": {"name": self._events.time, "unit": self._events.unit},
            "events": self.rows,
            "users": len(counts),
            "longest": int(counts.max()),
            "first": self._first,
            "last": self._last,
            "texts": names,
            "texts_used": {column: len(one) for column, one in texts.items()},
            "offsets": _offsets(stage / EVENTS),
            "files": {name: (stage / name).stat().st_size for name in (EVENTS, USERS, *names.values())},
            "fingerprint": self._digests.fingerprint(self._shown_types, texts),
        }

    @property
    def _shown_types(self) -> dict[str, str]:
        return {name: str(dtype) for name, dtype in self._types.items()}

    def earlier_fingerprint(self, texts_used: Mapping[str, int]) -> str:
        """Returns the fingerprint of the events up to the last time of the earlier log, and of its texts."""
        texts = {name: one[: texts_used.get(name, 0)] for name, one in self._events.texts().items()}
        return self._earlier.fingerprint(self._shown_types, texts)

    def write_manifest(self, about: Mapping[str, Any], stage: Path) -> None:
        """Writes `log.json`, which marks the log as complete."""
        (stage / MANIFEST).write_text(json.dumps(about, indent=2) + "\n")

    def _column(self, name: str, file: BinaryIO) -> pa.Array:
        """Returns a whole column in mapped memory."""
        content = pa.memory_map(file.name).read_buffer()
        return pa.Array.from_buffers(self._types[name], self.rows, [None, content])

    def _write_users(self, file: Path) -> np.ndarray:
        """Writes where the events of each user begin, in the order of their keys; returns how many each has."""
        keys, counts = np.concatenate(self._keys), np.concatenate(self._counts)
        # A user whose events are in two batches is there twice.
        begins = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        keys, counts = keys[begins], np.add.reduceat(counts, begins)
        first, order = offsets_of(counts)[:-1], np.argsort(keys, kind="stable")
        if (keys[order][1:] == keys[order][:-1]).any():
            raise InputError(
                f"--user is '{self._events.user}', in which two users have the same hash; number the users"
            )
        _write(file, {"key": keys[order], "first": first[order], "events": counts[order]})
        return counts


def _write(file: Path, columns: Mapping[str, pa.Array | np.ndarray]) -> None:
    """Writes columns as one record batch, uncompressed."""
    batch = pa.record_batch([pa.array(one) for one in columns.values()], [*columns])
    with pa.ipc.new_file(file, batch.schema, options=WIDE) as sink:
        sink.write_batch(batch)


def _offsets(file: Path) -> dict[str, int]:
    """Returns where the values of each column begin in a file of one record batch."""
    content = pa.memory_map(str(file)).read_buffer()
    batch = pa.ipc.open_file(content).get_batch(0)
    return {name: batch.column(name).buffers()[1].address - content.address for name in batch.schema.names}
