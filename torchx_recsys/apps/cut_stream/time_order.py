"""Puts records of several partitions in the order of their times, as far as they have been read."""

import time
from collections import deque
from collections.abc import Collection, Iterable
from heapq import heappop, heappush

from torchx_recsys.apps.cut_stream.topic import Record

IDLE_SECONDS = 1.0  # time of waiting for a partition that has more records, and of which none comes
HELD_BYTES = 64 << 20  # size of the values over all partitions from which those that are ahead are read no further
RECORD_BYTES = 500  # of a record in memory, beside its value


class TimeOrder:
    """Records that were read, and are in no segment yet.

    Brokers send the records of a partition in large pieces. In the order in which they come, a segment of a topic that
    has waited for long would have pieces of very different times. So the next record is that with the earliest time
    among the first of all partitions, and a partition that has more records is waited for, but no longer than a second.
    """

    def __init__(self) -> None:
        self._read: dict[int, deque[Record]] = {}
        self._bytes: dict[int, int] = {}
        self._heads: list[tuple[int, int]] = []  # time and partition of the first record of each
        self._awaited: set[int] = set()  # partitions that have more records, and of which none is here
        self._lagging: set[int] = set()  # partitions that have more records
        self._since = 0.0  # when the next record could not be taken

    @property
    def partitions(self) -> set[int]:
        """Partitions with records here."""
        return {number for _, number in self._heads}

    @property
    def is_ready(self) -> bool:
        """Whether the next record can be taken: no partition is likely to have an earlier one."""
        return bool(self._heads) and (not self._awaited or time.monotonic() - self._since > IDLE_SECONDS)

    def ahead(self) -> set[int]:
        """Returns the partitions of which enough is here."""
        most = HELD_BYTES / max(1, len(self._bytes))
        return {number for number, size in self._bytes.items() if size > most}

    def add(self, records: Iterable[Record], lagging: Collection[int]) -> None:
        """Adds records, in the order of each partition.

        Args:
            records: The records that were read last.
            lagging: The partitions that have more.
        """
        for record in records:
            self._append(record)
        if not self._awaited:
            self._since = time.monotonic()
        self._lagging = {*lagging}
        self._awaited = self._lagging - self.partitions

    def take(self) -> Record:
        """Takes the next record."""
        _, number = heappop(self._heads)
        held = self._read[number]
        record = held.popleft()
        self._bytes[number] -= _size(record)
        if held:
            heappush(self._heads, (held[0].time, number))
        elif number in self._lagging:
            if not self._awaited:
                self._since = time.monotonic()
            self._awaited.add(number)
        return record

    def wait_no_more(self) -> None:
        """Lets all records be taken that are here."""
        self._awaited, self._lagging = set(), set()

    def put_back(self, records: Iterable[Record]) -> None:
        """Puts records that were taken before those of their partitions."""
        before = self._read
        self._read, self._bytes, self._heads = {}, {}, []
        for record in (*records, *(one for held in before.values() for one in held)):
            self._append(record)
        self._awaited -= self.partitions

    def _append(self, record: Record) -> None:
        number = record.partition
        if number not in self._read:
            self._read[number], self._bytes[number] = deque(), 0
        if not self._read[number]:
            heappush(self._heads, (record.time, number))
        self._read[number].append(record)
        self._bytes[number] += _size(record)


def _size(record: Record) -> int:
    return len(record.value or b"") + RECORD_BYTES
