"""Reads the records of a topic for the cutter: each once, in the order of its partition."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from torchx_recsys.apps.cut_stream.start import start_seconds
from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError
from trainer.data.stream.log import Batch, RecordsGone, TopicLog

POLL_SECONDS = 0.2
POLL_RECORDS = 4096
POLL_BYTES = 8 << 20  # size of the records of a poll, by the mean size of those before


class Record(NamedTuple):
    """A record of a topic; its time is in milliseconds since 1970."""

    partition: int
    offset: int
    time: int
    key: bytes | None
    value: bytes | None


class CutTopic(TopicLog):
    """The records of a topic from given offsets on.

    Args:
        config: The stream section.
        check_stop: Called between polls; it may raise.

    Attributes:
        cluster: Id of the cluster; empty if brokers name none.
        partitions: Numbers of the partitions.
        positions: The next offset of each partition that is read.

    Raises:
        InputError: There is no such topic, or the brokers refuse this job.
        StorageError: The brokers do not answer.
    """

    def __init__(self, config: StreamConfig, check_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._check_stop, self._mean_bytes = check_stop, 1000.0
        self._paused: set[int] = set()
        self._ahead: set[int] = set()
        self._targets: dict[int, int] = {}
        self._ended: set[int] = set()
        self._beyond_since: float | None = None
        self.positions: dict[int, int] = {}
        topic = self.topic()
        self.cluster, self.partitions = topic.cluster, topic.partitions

    def starts(self) -> dict[int, int]:
        """Returns the offsets that data.stream.start stands for, by partition.

        Raises:
            InputError: It is none of its values.
            StorageError: The brokers do not answer.
        """
        from confluent_kafka import OFFSET_END

        if self._config.start == "earliest":
            return self.earliest(self.partitions)
        if self._config.start == "latest":
            return self._first(dict.fromkeys(self.partitions, OFFSET_END), float("inf"))
        seconds = start_seconds(self._config)
        found = self.offsets_at(seconds, self.partitions)
        return self._first({one: OFFSET_END if at is None else at for one, at in found.items()}, seconds * 1000)

    def begin(self, offsets: Mapping[int, int]) -> None:
        """Reads from these offsets on, by partition."""
        self.positions, self._targets, self._ended = dict(offsets), {}, set()
        self._paused, self._ahead = set(), set()
        self.assign(offsets)

    def add(self, number: int, offset: int) -> None:
        """Reads another partition, too."""
        from confluent_kafka import TopicPartition

        self.positions[number] = offset
        self._consumer.incremental_assign([TopicPartition(self._topic, number, offset)])

    def pause(self, number: int) -> None:
        """Reads no more of a partition until `resume`, beyond what was read with its last records."""
        from confluent_kafka import TopicPartition

        self._paused.add(number)
        self._consumer.pause([TopicPartition(self._topic, number)])

    def resume(self) -> None:
        """Reads all partitions again."""
        from confluent_kafka import TopicPartition

        if resumed := self._paused - self._ahead:
            self._consumer.resume([TopicPartition(self._topic, number) for number in resumed])
        self._paused = set()

    def read_on_without(self, ahead: Collection[int]) -> None:
        """Reads no more of some partitions for now, and reads all others that are not paused."""
        from confluent_kafka import TopicPartition

        for change, numbers in (
            (self._consumer.resume, self._ahead - {*ahead} - self._paused),
            (self._consumer.pause, {*ahead} - self._ahead - self._paused),
        ):
            if numbers:
                change([TopicPartition(self._topic, number) for number in numbers])
        self._ahead = {*ahead}

    def lagging(self) -> set[int]:
        """Returns the partitions that are read and have more records, as far as is known."""
        known = ((number, self._high(number)) for number in self.positions.keys() - self._paused)
        return {number for number, high in known if high is None or self.positions[number] < high}

    def highs(self) -> dict[int, int]:
        """Returns the ends of partitions that brokers have named with the last records, as far as they have."""
        return {number: high for number in self.positions if (high := self._high(number)) is not None}

    def has_caught_up(self) -> bool:
        """Returns whether all is read that the partitions had when reading began, but for paused partitions."""
        return all(number in self._paused or self._has_reached(number) for number in self.positions)

    def new_partitions(self) -> list[int]:
        """Returns the partitions that the topic has got since; reports if brokers cannot describe all of it now."""
        found = self._attempt(self._described)
        if found is None:
            print(f"warning: the topic cannot be described now{self._said(': ')}", flush=True)
            return []
        return sorted({*found.partitions} - self.positions.keys())

    def poll(self) -> list[Record]:
        """Returns the next records, after a wait if there are none.

        Raises:
            InputError: The next offset is gone, or the brokers refuse this job.
            StorageError: The brokers do not answer.
        """
        most = max(1, min(POLL_RECORDS, int(POLL_BYTES / self._mean_bytes)))
        try:
            batch = self.read(most, POLL_SECONDS)
        except RecordsGone as error:
            raise self._gone(error) from error
        self._check_stop()
        records = self._in_order(batch)
        for number, end in batch.ends.items():  # there may be no records at the last offsets
            self.positions[number] = max(self.positions[number], end)
            if end <= (self._high(number) or 0):  # less than that while a transaction is open
                self._ended.add(number)
        if records:
            size = sum(len(record.value or b"") for record in records)
            self._mean_bytes += (size / len(records) - self._mean_bytes) / 4
        else:
            self._refuse_beyond()
        return records

    def refuse_gone(self, wanted: Mapping[int, int], earliest: Mapping[int, int]) -> None:
        """Raises InputError if the topic no longer has the offsets to read next.

        Args:
            wanted: The offsets, by partition.
            earliest: The first offsets that are left.
        """
        lost = {number: earliest[number] - offset for number, offset in wanted.items() if earliest[number] > offset}
        if lost:
            number = min(lost)
            raise InputError(
                f"data.stream.topic '{self._topic}' has deleted {sum(lost.values()):,} records that are in no segment: "
                f"the next of partition {number} is offset {wanted[number]:,}, and the first that is left is "
                f"{earliest[number]:,}; name a new directory in data.segments.path to begin with what is left, and let "
                "the topic keep its records for longer"
            )

    def _in_order(self, batch: Batch) -> list[Record]:
        records = []
        for message in batch.messages:
            number, offset = message.partition(), message.offset()
            assert number is not None
            assert offset is not None
            if offset < self.positions[number]:
                print(f"warning: a broker sent offset {offset:,} of partition {number} again; passed over", flush=True)
                continue
            self.positions[number] = offset + 1
            records.append(Record(number, offset, message.timestamp()[1], message.key(), message.value()))
        return records

    def _first(self, offsets: Mapping[int, int], milliseconds: float) -> dict[int, int]:
        """Returns the offsets of the first records of a time or later; of partitions without any, their ends.

        Brokers may answer by batches of records, so that the records themselves decide.

        Args:
            offsets: Where to search from, by partition.
            milliseconds: The time.
        """
        self.begin(offsets)
        found: dict[int, int] = {}
        while len(found) < len(offsets):
            for record in self.poll():
                if record.time >= milliseconds:
                    found.setdefault(record.partition, record.offset)
            for number in offsets.keys() - found.keys():
                if self._has_reached(number):
                    found[number] = self.positions[number]
        return found

    def _has_reached(self, number: int) -> bool:
        """Returns whether a partition was read up to the end that it had at the first look."""
        if number not in self._targets and (high := self._high(number)) is not None:
            self._targets[number] = high
        position, target = self.positions[number], self._targets.get(number)
        return number in self._ended or (target is not None and target <= position <= (self._high(number) or 0))

    def _high(self, number: int) -> int | None:
        from confluent_kafka import TopicPartition

        found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), cached=True)
        return found[1] if found and found[1] >= 0 else None

    def _refuse_beyond(self) -> None:
        """Raises InputError if a partition ends before its position, and not only while its leader changes."""
        beyond = [number for number, high in self.highs().items() if high < self.positions[number]]
        if not beyond:
            self._beyond_since = None
            return
        self._beyond_since = self._beyond_since or time.monotonic()
        if time.monotonic() - self._beyond_since > self._config.timeout_seconds:
            raise self._beyond(beyond[0])

    def _gone(self, error: RecordsGone) -> InputError:
        number = error.partition or 0
        wanted = {number: self.positions[number]}
        self.refuse_gone(wanted, self.earliest(wanted))
        return self._beyond(number)

    def _beyond(self, number: int) -> InputError:
        return InputError(
            f"data.stream.topic '{self._topic}' ends before offset {self.positions[number]:,} of partition {number}, "
            "the next to read: it is not the topic that the segments are of; name another directory in "
            "data.segments.path"
        )

    def _check_bound(self) -> None:
        super()._check_bound()
        self._check_stop()
