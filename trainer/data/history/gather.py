"""Gathers histories: for each sample the last events of its user before its time.

What a sample gets depends on its row and the log alone. So whatever the order of samples, the number of ranks and the
place where a run was stopped, a sample has the same lists.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import NoReturn

import numpy as np
import pyarrow as pa

from trainer.core.errors import InputError
from trainer.data.history.choose import first_not_before, last_of_each, meeting, side_by_side, slices
from trainer.data.history.columns import HistoryColumns
from trainer.data.history.log import Events
from trainer.data.readers.base import Column
from trainer.data.selection import SelectedColumns, check_clauses
from trainer.rules.derived_ids import NO_TIME, are_times, to_seconds
from trainer.rules.hashing import as_integers
from trainer.rules.plain_types import SECOND, is_missing, plain_array, to_ids

AT_ONCE = 1 << 22  # events that are chosen from, or read from other storage, at the same time
KINDS = 16  # largest number of kinds of events that are counted apart: sets of them are told apart, too

Refuse = Callable[[str, int], NoReturn]
"""Raises an error about a row."""


class Gatherer:
    """Gathers the lists of samples.

    Args:
        columns: The lists.
        versions: The version of the log when the files were listed, first.

    Raises:
        InputError: The log was replaced since, or the conditions on events do not go with it.
    """

    def __init__(self, columns: HistoryColumns, versions: Sequence[str]) -> None:
        self._config, self._log = columns.config, columns.log
        if versions and versions[0] != self._log.fingerprint:
            raise InputError(
                f"the log at {self._log.name} was replaced after the files of the samples were listed; start the job "
                "again"
            )
        check_clauses(self._config.clauses, self._log.name, pa.schema(self._log.types.items()), "data.history.where")
        chosen_by = [clause.column for clause in self._config.clauses]
        self._names = list(dict.fromkeys([self._log.time, *self._config.columns.values(), *chosen_by]))
        if self._config.each:
            self._names.append(self._config.each)

    def instead(self, names: Iterable[str]) -> list[str]:
        """Returns the columns to read from the files: users and times in place of the lists."""
        return [*(name for name in names if name not in self._config.columns), *self._config.reads]

    def beside(self, column: Column, where: Callable[[int], str]) -> Column:
        """Returns a function for the columns of rows and the lists, which are gathered when the first is read.

        Args:
            column: Returns a column of the rows.
            where: Names a row of the file in messages.
        """
        if isinstance(column, SelectedColumns):
            return replace(column, column=self.beside(column.column, lambda row: where(int(column.places[row]))))
        lock, found = Lock(), dict[str, pa.ChunkedArray]()  # several threads may read columns of the same rows

        def refuse(message: str, row: int) -> NoReturn:
            raise InputError(f"{where(row)}, {message}")

        def read(name: str) -> pa.ChunkedArray:
            if name not in self._config.columns:
                return column(name)
            with lock:
                if not found:
                    found.update(self._gather(column, refuse))
            return found[name]

        return read

    def _gather(self, column: Column, refuse: Refuse) -> dict[str, pa.ChunkedArray]:
        users, times = (plain_array(column(name)) for name in self._config.reads)
        first, stop, now = self._places(users, times, refuse)
        parts = [self._lists(self._events(first[part], stop[part], now[part])) for part in self._parts(first, stop)]
        return {name: pa.chunked_array([part[name] for part in parts]) for name in self._config.columns}

    def measure(self, users: pa.Array, times: pa.Array, refuse: Refuse) -> "EventCounts":
        """Counts the events that there are of samples in the log.

        Args:
            users: The users of samples, `[R]`.
            times: Their times, `[R]`.
            refuse: Raises the error of a wrong time.
        """
        first, stop, now = self._places(users, times, refuse)
        found = []
        for part in self._parts(first, stop):
            before, upto = (self._events(first[part], stop[part], now[part] + later) for later in (0, 1))
            (lists, *_) = self._lists(before).values()
            kept = np.diff(lists.offsets.to_numpy())
            found.append((stop[part] - first[part], before.stop - before.first, upto.stop - before.stop, kept))
        return EventCounts(*map(np.concatenate, zip(*found, strict=True)))

    def _places(self, users: pa.Array, times: pa.Array, refuse: Refuse) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns where the events of each sample's user begin and end in the log, and its time, `[R]` each."""
        now, ids = self._times(times, refuse), to_ids(users)
        first, stop = self._log.find(as_integers(ids).astype(np.int64))
        return first, np.where(is_missing(ids), first, stop), now  # a sample without a user has no history

    def _parts(self, first: np.ndarray, stop: np.ndarray) -> Iterator[slice]:
        """Yields the rows that are worked on together; all of them if events are only copied from mapped memory."""
        if self._log.is_mapped and not (self._config.where or self._config.each):
            yield slice(0, len(first))
            return
        # A user of several samples in a row is counted once, as the user's events are looked at once.
        upto, begin = np.cumsum((stop - first) * np.append(True, first[1:] != first[:-1])), 0
        while begin < max(1, len(first)):
            before = upto[begin - 1] if begin else 0
            end = max(begin + 1, int(np.searchsorted(upto, before + AT_ONCE, side="right")))
            yield slice(begin, end)
            begin = end

    def _events(self, first: np.ndarray, stop: np.ndarray, now: np.ndarray) -> Events:
        """Returns the events of each sample's user before its time."""
        events = self._log.events(first, stop, self._names)
        times = _integers(events.columns[self._log.time])
        return replace(events, stop=first_not_before(times, events.first, events.stop, now))

    def _lists(self, events: Events) -> dict[str, pa.LargeListArray]:
        config = self._config
        assert config.length
        if config.where or config.each:
            events = side_by_side(events)
        if config.among:
            events = replace(events, first=np.maximum(events.first, events.stop - config.among))
        if config.where:
            events = meeting(events, config.clauses)
        if config.each:
            kinds = _kinds(events.columns[config.each], config.each)
            pieces = last_of_each(kinds, events.first, events.stop, config.length)
            taken = {of: pieces.of(events.columns[of]) for of in config.columns.values()}
        else:
            sizes = np.minimum(events.stop - events.first, config.length)
            taken = {of: slices(events.columns[of], events.stop - sizes, sizes) for of in config.columns.values()}
        return {name: _decoded(taken[of]) for name, of in config.columns.items()}

    def _times(self, array: pa.Array, refuse: Refuse) -> np.ndarray:
        """Returns the times of samples in the log's unit, rounded up: what is before them stays before them, `[R]`."""
        name, missing = self._config.time, is_missing(array)
        if missing.any():
            refuse(f"column '{name}': null is not allowed for the time of a sample", int(missing.argmax()))
        log = SECOND[self._log.about["time"]["unit"]]
        if pa.types.is_timestamp(array.type):
            ticks, here = array.cast(pa.int64()).to_numpy(zero_copy_only=False), SECOND[array.type.unit]
        else:
            (ticks, _), here = to_seconds(array), 1
            if pa.types.is_integer(array.type) and not (good := are_times(ticks, missing)).all():
                refuse(f"column '{name}': {ticks[good.argmin()]} {NO_TIME}", int(good.argmin()))
        if log < here:
            return -(-ticks // (here // log))
        most = np.iinfo(np.int64).max // (log // here)
        return np.clip(ticks, -most, most) * (log // here)


@dataclass(frozen=True)
class EventCounts:
    """How many events of a log there are of each sample's user, `[R]` each.

    Attributes:
        known: Events of the user at any time.
        before: Those before the sample's time.
        at: Those at its time, which it does not see.
        kept: Those in its history.
    """

    known: np.ndarray
    before: np.ndarray
    at: np.ndarray
    kept: np.ndarray


def _kinds(column: pa.Array, name: str) -> np.ndarray:
    """Returns the number of each event's kind."""
    coded = column.dictionary_encode()
    if len(coded.dictionary) > KINDS:
        raise InputError(
            f"data.history.each is '{name}', a column of the log with {len(coded.dictionary):,} and more values; name "
            f"one of at most {KINDS} kinds of events"
        )
    return coded.indices.to_numpy().astype(np.int64)


def _decoded(lists: pa.LargeListArray) -> pa.LargeListArray:
    """Returns lists of text without their dictionary, and other lists as they are."""
    if not pa.types.is_dictionary(lists.type.value_type):
        return lists
    return pa.LargeListArray.from_arrays(lists.offsets, lists.values.dictionary_decode().cast(pa.large_string()))


def _integers(column: pa.Array) -> np.ndarray:
    """Returns times as integers, without a copy."""
    return np.frombuffer(column.buffers()[1], np.int64, len(column), column.offset * 8)
