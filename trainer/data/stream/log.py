"""The connection to a topic: its partitions, and its records in batches, with the errors of brokers as ours."""

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import fsspec

from trainer.config.stream import StreamConfig
from trainer.core.errors import InputError, StorageError, nearest
from trainer.core.secrets import without_secrets
from trainer.core.storage import named

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

QUEUE_BYTES = 16 << 20  # records that a consumer reads ahead, at most; beside them, one answer of as many bytes
ASKED_SECONDS = 1.0  # bound of one request; requests are repeated until data.stream.timeout_seconds
QUIET_SECONDS = 2.0  # without any record for so long, brokers are asked whether they are there
AHEAD_RECORDS = 8192  # number of records at hand from which no more are requested
PAUSE_SECONDS = 0.2
WAIT_MS = 50  # so long does a broker wait for records at the end of a partition
TOLD_SECONDS = 5.0  # after so long a line reports that brokers are waited for
WAITED_FOR = set[str | None]()  # brokers of which it was reported, once for all connections of this process
SET_HERE = {
    "bootstrap.servers": "data.stream.brokers",
    "metadata.broker.list": "data.stream.brokers",
    **dict.fromkeys(
        ("enable.auto.commit", "enable.auto.offset.store", "auto.offset.reset", "enable.partition.eof", "log_level"),
        "the program",
    ),
}
"""Properties that data.stream.options may not have, with what sets them."""
REFUSED = ("_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED", "UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE")
DENIED = ("TOPIC_AUTHORIZATION_FAILED", "CLUSTER_AUTHORIZATION_FAILED")
GONE = ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE")


class RecordsGone(LookupError):
    """A partition has no record at the offset at which it was to be read.

    Attributes:
        partition: The partition.
    """

    def __init__(self, partition: int | None) -> None:
        super().__init__(f"partition {partition} has no record at that offset")
        self.partition = partition


@dataclass(frozen=True)
class Topic:
    """A topic as brokers describe it.

    Attributes:
        cluster: Id of the cluster; empty if brokers name none.
        partitions: Its partitions.
    """

    cluster: str
    partitions: tuple[int, ...]


@dataclass(frozen=True)
class Batch:
    """Records that were read.

    Attributes:
        messages: The records, in order within each partition.
        ends: Partitions that were read to their end, with the offset after their last record.
    """

    messages: Sequence["Message"]
    ends: Mapping[int, int]


class TopicLog:
    """A connection to a topic of data.stream, for one thread at a time.

    It joins no consumer group and commits nothing. It retries whatever may pass, and gives up when no broker has
    answered for data.stream.timeout_seconds. Close it at the end.

    Args:
        config: Names brokers, topic and options.

    Raises:
        InputError: confluent-kafka is not installed, or options cannot be used.
    """

    def __init__(self, config: StreamConfig) -> None:
        assert config.topic
        self._config, self._topic = config, config.topic
        self._consumer = _make_consumer(config, self._note)
        self._answered = time.monotonic()  # when a broker answered last
        self._quiet = self._answered  # when it was last known that there is nothing to read, or a record was read
        self._reached = False  # whether a broker has answered at all
        self._reason: KafkaError | None = None  # the newest error since the last answer
        self._early: list[Message] = []  # read while callbacks were served

    def topic(self) -> Topic:
        """Returns the partitions of the topic.

        Raises:
            InputError: There is no such topic, or brokers refuse access.
            StorageError: No broker has answered in time.
        """
        self._answered = time.monotonic()
        return self._until_answered(self._described)

    def earliest(self, partitions: Iterable[int]) -> dict[int, int]:
        """Returns the offsets of the first records that partitions still have; raises the same errors as `topic`."""
        from confluent_kafka import TopicPartition

        def request(partition: int) -> int | None:
            found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, partition), ASKED_SECONDS)
            return found[0] if found else None

        self._answered = time.monotonic()
        return {one: self._until_answered(lambda one=one: request(one)) for one in partitions}

    def offsets_at(self, seconds: float, partitions: Iterable[int]) -> dict[int, int | None]:
        """Returns the offsets of the first records of a time, in seconds since 1970, or later; None where none is.

        Raises:
            InputError: Brokers refuse access.
            StorageError: No broker has answered in time.
        """
        from confluent_kafka import TopicPartition

        asked = [TopicPartition(self._topic, one, int(seconds * 1000)) for one in partitions]

        def request() -> list[TopicPartition] | None:
            found = self._consumer.offsets_for_times(asked, timeout=ASKED_SECONDS)
            for one in found:
                if one.error:
                    self._note(one.error)
            return None if any(one.error for one in found) else found

        self._answered = time.monotonic()
        found = self._until_answered(request)
        return {one.partition: one.offset if one.offset >= 0 else None for one in found}

    def assign(self, offsets: Mapping[int, int]) -> None:
        """Reads from these offsets on, by partition, and from no other partition."""
        from confluent_kafka import TopicPartition

        self._early = []
        self.go_on()
        self._consumer.assign([TopicPartition(self._topic, one, offset) for one, offset in offsets.items()])

    def go_on(self) -> None:
        """Counts the time of waiting from now on, after the connection was not used for a while."""
        self._answered = self._quiet = time.monotonic()

    def read(self, most: int, seconds: float) -> Batch:
        """Returns the next records, as soon as there are `most`, or after some time.

        Args:
            most: Largest number of records.
            seconds: Time after which it returns with less, or without any.

        Raises:
            RecordsGone: A partition has no record at its offset.
            InputError: There is no such topic any more, or brokers refuse access.
            StorageError: No broker has answered in time.
        """
        from confluent_kafka import KafkaException

        early, self._early = self._early, []
        try:
            found = early + self._consumer.consume(max(most - len(early), 1), 0 if early else seconds)
        except KafkaException as error:
            self._note(error.args[0])
            found = early
        batch = self._sorted(found)
        now = time.monotonic()
        if batch.messages or batch.ends:
            self._has_answered()
            self._quiet = now
        elif now - self._quiet > min(QUIET_SECONDS, self._config.timeout_seconds / 4):
            if self._attempt(self._described):
                self._quiet = time.monotonic()
            self._check_bound()
        return batch

    def close(self) -> None:
        """Ends the connection."""
        self._consumer.close()

    def _sorted(self, messages: Iterable["Message"]) -> Batch:
        """Separates records from errors, and raises errors that do not pass."""
        records, ends = [], {}
        for message in messages:
            if (error := message.error()) is None:
                records.append(message)
            elif error.name() == "_PARTITION_EOF":
                ends[message.partition()] = message.offset()
            elif error.name() in GONE:
                raise RecordsGone(message.partition())
            else:
                self._note(error)
        return Batch(records, ends)

    def _described(self) -> Topic | None:
        """Returns the topic; None if brokers cannot describe it now."""
        found = self._consumer.list_topics(self._topic, timeout=ASKED_SECONDS)
        topic = found.topics[self._topic]
        problems = [topic.error, *(one.error for one in topic.partitions.values())]
        problem = next((one for one in problems if one is not None), None)
        if problem is None and topic.partitions:
            return Topic(found.cluster_id or "", tuple(sorted(topic.partitions)))
        if problem is not None:
            self._note(problem)
            if problem.name() == "UNKNOWN_TOPIC_OR_PART" and not self._reached:
                self._refuse_topic()
        return None

    def _refuse_topic(self) -> NoReturn:
        known = [name for name in self._consumer.list_topics(timeout=ASKED_SECONDS).topics if not name.startswith("__")]
        raise InputError(
            f"data.stream.topic is '{self._topic}', which brokers {self._config.brokers} do not have"
            f"{nearest(self._topic, known) if known else '; they have no topic that this user may read'}"
        )

    def _until_answered(self, request: Callable[[], Any]) -> Any:
        """Returns the answer to a request, which is repeated within the bound."""
        while (found := self._attempt(request)) is None:
            self._check_bound()
            time.sleep(PAUSE_SECONDS)
        return found

    def _attempt(self, request: Callable[[], Any]) -> Any:
        """Returns the answer to a request; None if there is none."""
        from confluent_kafka import KafkaException

        try:
            found = request()
        except KafkaException as error:
            self._note(error.args[0])
            found = None
        if found is not None:
            self._has_answered()
            return found
        try:
            self._early += self._consumer.consume(1, 0)  # lets it report its errors, too
        except KafkaException as error:
            self._note(error.args[0])
        self._check_refused()
        return None

    def _has_answered(self) -> None:
        if WAITED_FOR and self._config.brokers in WAITED_FOR:
            WAITED_FOR.discard(self._config.brokers)
            print(f"brokers {self._config.brokers} answer again", flush=True)
        self._answered, self._reached, self._reason = time.monotonic(), True, None

    def _note(self, error: "KafkaError") -> None:
        """Remembers an error: the most telling since the last answer. librdkafka calls it while it is polled."""
        vague = ("_ALL_BROKERS_DOWN", "_TIMED_OUT", "_TRANSPORT")
        generic = error.name() in vague and "/" not in error.str()  # an error of a connection names it: HOST/ID
        if self._reason is None or (not generic and self._reason.name() not in (*REFUSED, *DENIED)):
            self._reason = error

    def _check_refused(self) -> None:
        """Raises what no other attempt changes. Brokers that have answered before may only be about to end."""
        if self._reason is None:
            return
        name, brokers = self._reason.name(), self._config.brokers
        if name in DENIED:
            raise InputError(
                f"data.stream.topic is '{self._topic}', which brokers {brokers} let this user not read "
                f"({self._said()}); grant access, or name another user in data.stream.options"
            )
        if name in REFUSED and not self._reached:
            raise InputError(
                f"data.stream.brokers is '{brokers}', which refuse the connection ({self._said()}); check "
                "security.protocol, and the names, passwords and certificates, in data.stream.options"
            )

    def _check_bound(self) -> None:
        self._check_refused()
        waited, brokers = time.monotonic() - self._answered, self._config.brokers
        if waited <= self._config.timeout_seconds:
            if waited > min(TOLD_SECONDS, self._config.timeout_seconds / 2) and brokers not in WAITED_FOR:
                WAITED_FOR.add(brokers)
                print(
                    f"brokers {brokers} do not answer{self._said(': ')}; waiting for them for "
                    f"{self._config.timeout_seconds:g} s",
                    flush=True,
                )
            return
        if self._reason and self._reason.name() in REFUSED:
            self._reached = False
            self._check_refused()
        if self._reason and self._reason.name() == "UNKNOWN_TOPIC_OR_PART":
            self._refuse_topic()
        raise StorageError(
            f"data.stream.brokers is '{self._config.brokers}': no broker has answered for "
            f"data.stream.timeout_seconds ({self._config.timeout_seconds:g}){self._said(': ')}; check the addresses, "
            "that brokers run, and that this host reaches them"
        )

    def _said(self, before: str = "") -> str:
        """Returns what librdkafka reports, without the times in it."""
        if self._reason is None:
            return ""
        return before + re.sub(r" \(after \d+ms[^)]*\)", "", " ".join(without_secrets(self._reason.str()).split()))


def _make_consumer(config: StreamConfig, note: Callable[["KafkaError"], None]) -> "Consumer":
    """Makes librdkafka's consumer for data.stream, which prints nothing.

    Args:
        config: Names brokers and options.
        note: Receives the errors that no call raises, while the consumer is polled.

    Raises:
        InputError: confluent-kafka is not installed, or options cannot be used.
    """
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError as error:
        raise InputError("data.stream needs the package confluent_kafka; pip install 'torchx-recsys[kafka]'") from error
    wait = min(60_000, max(1000, int(config.timeout_seconds * 500)))
    defaults = {
        "group.id": "torchx-recsys",  # the package requires one; it is not joined
        "client.id": "torchx-recsys",
        "queued.max.messages.kbytes": QUEUE_BYTES >> 10,
        "queued.min.messages": AHEAD_RECORDS,
        "fetch.max.bytes": QUEUE_BYTES,
        # Whoever reads from other offsets first waits for the answer to a request at the end of the partition.
        "fetch.wait.max.ms": WAIT_MS,
        "fetch.queue.backoff.ms": 20,  # after records ahead were at their bound; 1000 by default
        "socket.timeout.ms": wait,
        "socket.connection.setup.timeout.ms": min(30_000, wait),
        "reconnect.backoff.max.ms": 1000,
        "max.poll.interval.ms": 86_400_000,  # between two row groups a connection may rest for as long as it likes
    }
    fixed = {
        "bootstrap.servers": config.brokers,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
        "log_level": 0,
        "error_cb": note,
    }
    options = read_options(config.options) if config.options else {}
    try:
        return Consumer(defaults | options | fixed, logger=logging.Logger("librdkafka", logging.CRITICAL))
    except KafkaException as error:
        raise InputError(f"data.stream.options: {_refusal(error.args[0].str(), options)}") from error


def _refusal(text: str, options: Mapping[str, str]) -> str:
    """Returns why librdkafka refuses properties, without their values, which may be passwords."""
    see = "see CONFIGURATION.md of librdkafka"
    if found := re.search(r'No such configuration property: "([^"]*)"', text):
        return f"it has '{found[1]}', which librdkafka does not know; {see}"
    if found := re.search(r'configuration property "([^"]*)"', text):
        return f"its value of '{found[1]}' is none that librdkafka takes; {see}"
    for value in options.values():
        text = text.replace(value, "***") if len(value) > 3 else text
    return f"{' '.join(without_secrets(text).split())}; {see}"


def read_options(url: str) -> dict[str, str]:
    """Reads data.stream.options: lines of key=value, and comments after a #.

    Raises:
        InputError: The file cannot be read, has another line, or a property that is set elsewhere.
    """
    key, found = "data.stream.options", dict[str, str]()
    with named(key, url):
        fs, path = fsspec.core.url_to_fs(url)
        text = fs.cat_file(path)
    try:
        lines = text.decode().splitlines()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{key} is '{without_secrets(url)}', which is no text in UTF-8; name a file of text"
        ) from error
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name:  # the line is not shown: it may be a password
            raise InputError(f"{key} is '{without_secrets(url)}', whose line {number} is not key=value; correct it")
        if name in SET_HERE:
            raise InputError(
                f"{key} is '{without_secrets(url)}', whose line {number} has '{name}', which {SET_HERE[name]} sets; "
                "leave it out"
            )
        found[name] = value
    return found
