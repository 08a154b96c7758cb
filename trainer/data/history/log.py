"""A log of events sorted by user and time: opens the files that `sort-log` writes, without reading the events.

`events.arrow` is one record batch, uncompressed, so that a column is one array wherever the file is mapped into memory,
and the events of a user are one range of bytes in it, which an object store can send alone. `users.arrow` says where
the events of each user are.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np
import pyarrow as pa

from trainer.core.errors import InputError, StorageError, first_line
from trainer.core.secrets import without_secrets
from trainer.core.storage import Storage, named, open_storage

KEY = "data.history.log"
MANIFEST, EVENTS, USERS = "log.json", "events.arrow", "users.arrow"
VERSION = 1
BLOCK_EVENTS = 1 << 20  # events whose users are written out at once
NEAR_BYTES = 1 << 16  # ranges of bytes this near are read together: a request takes longer than the bytes between


@dataclass(frozen=True)
class Events:
    """Some events of a log.

    Attributes:
        columns: Their columns, by name; text is dictionary-encoded.
        first: Where the events of each sample's user begin in the columns, `[R]`.
        stop: Where they end, `[R]`.
    """

    columns: Mapping[str, pa.Array]
    first: np.ndarray
    stop: np.ndarray


class EventLog:
    """A sorted log.

    Args:
        url: The directory, on any fsspec URL.
        about: Its manifest.

    Attributes:
        name: The URL without secrets.
        about: The manifest: `user` and `time` (names and kinds), `events`, `users`, `fingerprint` and more.

    Raises:
        InputError: A file is missing or not whole.
    """

    def __init__(self, url: str, about: Mapping) -> None:
        self.name, self.about = without_secrets(url), about
        self._fs, self._path = open_storage(url)
        for file, size in about["files"].items():
            with named(KEY, url):
                found = self._fs.size(f"{self._path}/{file}") if self._fs.exists(f"{self._path}/{file}") else None
            if found != size:
                has = "is missing" if found is None else f"has {found:,} bytes"
                raise InputError(
                    f"{KEY} is '{self.name}', in which {file} {has}, not {size:,} bytes; write it again by sort-log"
                )
        with _readable(self.name, USERS):
            users = pa.ipc.open_file(self._opened(USERS)).get_batch(0)
        self._keys, self._first, self._events = (column.to_numpy() for column in users.columns)
        self._texts: dict[str, pa.Array] = {}

    @property
    def fingerprint(self) -> str:
        """Changes with any event, or with the order of events."""
        return self.about["fingerprint"]

    @property
    def versions(self) -> tuple[str, ...]:
        """The fingerprint, and those of logs that this one continues with later events only."""
        return self.fingerprint, *self.about.get("continues", ())

    @property
    def time(self) -> str:
        """The column of times."""
        return self.about["time"]["name"]

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The types of the columns as lists have them."""
        return {field.name: pa.large_string() if field.name in self.texts else field.type for field in self._schema}

    @cached_property
    def _schema(self) -> pa.Schema:
        with _readable(self.name, EVENTS), self._opened(EVENTS) as file:
            return pa.ipc.open_file(file).schema

    @property
    def texts(self) -> Mapping[str, str]:
        """The columns of text, of which events have numbers, each with the file of its texts."""
        return self.about["texts"]

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns where the events of users begin and end, `[R]` each, given their keys, `[R]` int64; 0 if unknown."""
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = self._keys[places] == keys
        first = self._first[places] * known
        return first, first + self._events[places] * known

    @property
    def is_mapped(self) -> bool:
        """Whether the events are in memory that is mapped from a local file; else ranges of users are read."""
        return self._fs.is_local

    def events(self, first: np.ndarray, stop: np.ndarray, names: Sequence[str]) -> Events:
        """Returns events: all of a mapped log, else those of some users.

        Args:
            first: Where the events of each sample's user begin in the log, `[R]`.
            stop: Where they end, `[R]`.
            names: The columns.
        """
        if self.is_mapped:
            return Events({name: self._coded(name, self._mapped.column(name)) for name in names}, first, stop)
        begins, places = np.unique(np.where(stop > first, first, -1), return_inverse=True)
        ends = np.full(len(begins), -1)
        np.maximum.at(ends, places, np.where(stop > first, stop, -1))
        sizes = ends - begins
        begins, ends = begins[sizes > 0], ends[sizes > 0]
        columns = {name: self._coded(name, self._fetched(name, begins, ends)) for name in names}
        here = (np.cumsum(sizes) - sizes)[places]
        return Events(columns, here, here + sizes[places])

    def places_out_of_order(self) -> np.ndarray:
        """Returns the places of events that are earlier than the event before of the same user; of a mapped log."""
        times = np.frombuffer(self._mapped.column(self.time).buffers()[1], np.int64, len(self._mapped))
        begins = np.zeros(len(times), bool)
        begins[self._first] = True
        return np.flatnonzero((np.diff(times, prepend=times[:1]) < 0) & ~begins)

    def blocks(self) -> Iterator[tuple[np.ndarray, pa.RecordBatch]]:
        """Yields the keys of the users of events, and the events as they are stored, in blocks; of a mapped log."""
        order = np.argsort(self._first, kind="stable")
        begins, keys = self._first[order], self._keys[order]
        follow_each_other = np.diff(begins, append=len(self._mapped)) == self._events[order]
        keys = np.where(follow_each_other, keys, ~keys)  # events that are of two users or none have another's key
        for start in range(0, len(self._mapped), BLOCK_EVENTS):
            events = self._mapped.slice(start, BLOCK_EVENTS)
            places = np.arange(start, start + len(events))
            yield keys[np.searchsorted(begins, places, side="right") - 1], events

    def read_texts(self) -> dict[str, pa.Array]:
        """Returns the texts of the columns of text, by column."""
        return {name: self._texts_of(name) for name in self.texts}

    @cached_property
    def _mapped(self) -> pa.RecordBatch:
        with _readable(self.name, EVENTS):
            return pa.ipc.open_file(self._opened(EVENTS)).get_batch(0)

    def _coded(self, name: str, column: pa.Array) -> pa.Array:
        """Returns a column whose numbers stand for texts as a dictionary of them."""
        if name not in self.texts:
            return column
        return pa.DictionaryArray.from_arrays(column, self._texts_of(name), safe=False)  # safe would read all of it

    def _texts_of(self, name: str) -> pa.Array:
        if name not in self._texts:
            with _readable(self.name, self.texts[name]):
                self._texts[name] = pa.ipc.open_file(self._opened(self.texts[name])).get_batch(0).column(0)
        return self._texts[name]

    def _opened(self, file: str) -> pa.NativeFile:
        path = f"{self._path}/{file}"
        return pa.memory_map(path) if self._fs.is_local else pa.PythonFile(self._fs.open(path, "rb"), mode="r")

    def _fetched(self, name: str, begins: np.ndarray, ends: np.ndarray) -> pa.Array:
        """Reads ranges of a column, one after the other; ranges are in order and apart."""
        dtype, offset = self._schema.field(name).type, self.about["offsets"][name]
        width = dtype.bit_width // 8
        starts, stops = offset + begins * width, offset + ends * width
        try:
            content = b"".join(read_ranges(self._fs, f"{self._path}/{EVENTS}", starts, stops))
        except StorageError as error:
            # Subclasses stand for a missing or refused file: another attempt would find the same.
            kind = StorageError if type(error) is StorageError else InputError
            raise kind(f"{self.name}/{EVENTS}: histories cannot be gathered ({first_line(error)})") from error
        return pa.Array.from_buffers(dtype, int((ends - begins).sum()), [None, pa.py_buffer(content)])


def read_ranges(fs: Storage, path: str, starts: np.ndarray, stops: np.ndarray) -> Iterator[bytes]:
    """Yields ranges of bytes of a file, which are in order and apart; ranges that are near are read together."""
    if not len(starts):
        return
    cuts = [0, *(np.flatnonzero(starts[1:] - stops[:-1] > NEAR_BYTES) + 1), len(starts)]
    together = [(first, last) for first, last in pairwise(cuts)]
    of = [int(starts[first]) for first, _ in together], [int(stops[last - 1]) for _, last in together]
    for (first, last), begin, content in zip(
        together, of[0], fs.cat_ranges([path] * len(together), *of, on_error="raise"), strict=True
    ):
        for place in range(first, last):
            yield content[starts[place] - begin : stops[place] - begin]


def open_log(url: str, key: str = KEY) -> EventLog:
    """Opens a log; a log that was opened before and has not changed stays open.

    Args:
        url: The directory, on any fsspec URL.
        key: The key or flag that names it, for messages.

    Raises:
        InputError: There is no log, it is of another version, or it is not whole.
    """
    with named(key, url):
        fs, path = open_storage(url)
        text = fs.cat_file(f"{path}/{MANIFEST}") if fs.exists(f"{path}/{MANIFEST}") else None
    name = without_secrets(url)
    if text is None:
        raise InputError(f"{key} is '{name}', which holds no {MANIFEST}; name a directory that sort-log wrote")
    try:
        version = json.loads(text)["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{key} is '{name}', whose {MANIFEST} is damaged; write the log again by sort-log") from error
    if version != VERSION:
        raise InputError(f"{key} is '{name}', a log of version {version}; this version reads {VERSION}")
    return _opened(url, text)


@lru_cache(maxsize=4)
def _opened(url: str, manifest: bytes) -> EventLog:
    return EventLog(url, json.loads(manifest))


@contextmanager
def _readable(name: str, file: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise InputError(
            f"{KEY} is '{name}', in which {file} is damaged ({first_line(error)}); write the log again by sort-log"
        ) from error
