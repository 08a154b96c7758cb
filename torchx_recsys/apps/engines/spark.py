"""Computes the parts of a job on a Spark cluster, whose workers have this package installed."""

import pickle
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from threading import Thread
from typing import Any, TypeVar

import pyarrow as pa

from torchx_recsys.apps.engines.threads import Threads
from trainer.core.errors import InputError, StorageError
from trainer.core.secrets import without_secrets

ALONE_SECONDS = 120
JOBS = 64  # number of Spark jobs at the same time; each finished job advances the progress bar
PACKAGES = ("pyspark", "py4j", "grpc")
PYTHON_ERROR = re.compile(r"Traceback [^\n]*\n(?:[ \t][^\n]*\n)+(?:[\w.]+\.)?(\w+: [^\n]+)")  # in a worker's log

Item = TypeVar("Item")
Result = TypeVar("Result")


class Spark:
    """A session of Spark.

    Args:
        url: URL of a Spark Connect server (`sc://HOST`), or a master (`spark://HOST:PORT`, `yarn`, `local[2]`).
        job: Name of the job, for Spark's pages.
        bar: Whether a master's session shows Spark's own progress bar.

    Attributes:
        session: The session.

    Raises:
        InputError: pyspark is not installed.
        StorageError: Spark cannot be reached.
    """

    def __init__(self, url: str, job: str, bar: bool = False) -> None:
        self._shown = without_secrets(url)
        try:
            builder = import_module("pyspark.sql").SparkSession.builder.appName(job)
        except ImportError as error:
            raise InputError(
                f"--engine is '{self._shown}', which needs pip install 'torchx-recsys[spark]' ({error})"
            ) from error
        with self.reported():
            if url.startswith("sc://"):
                self.session = builder.remote(url).getOrCreate()
            else:
                builder = builder.master(url).config("spark.ui.showConsoleProgress", str(bar).lower())
                self.session = builder.getOrCreate()
                # A Spark Connect server cancels lost jobs by itself; a master's session does not.
                Thread(target=_cancel_if_alone, args=(self.session.sparkContext,), daemon=True).start()

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Turns a failure of Spark in the block into an error of one line."""
        try:
            yield
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in PACKAGES and not isinstance(error, OSError):
                raise
            raise StorageError(
                f"--engine is '{self._shown}', and Spark has failed: {_reason(str(error))}; start the job again"
            ) from error

    def map(
        self, make: Callable[[Item], Result], items: Iterable[Item], stop: Callable[[], None] = lambda: None
    ) -> Iterator[Result]:
        """Yields `make(item)` for every item, each as a task of Spark; see `Engine.map`.

        Args:
            make: The function; it is pickled by its name.
            items: The arguments, which are pickled.
            stop: Called at the end or at the first error.

        Raises:
            InputError: A task has raised InputError.
            StorageError: Spark has failed, or a task's storage.
        """
        tasks = [*items]
        size = -(-len(tasks) // JOBS) or 1
        jobs = [tasks[start : start + size] for start in range(0, len(tasks), size)]

        def cancel() -> None:
            stop()
            with suppress(Exception):  # Spark has ended
                self.session.interruptAll()

        for results in Threads(JOBS).map(partial(self._run, make), jobs, cancel):
            yield from results

    def _run(self, make: Callable[[Item], Result], tasks: Sequence[Item]) -> list[Result]:
        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for place in batch["id"].to_pylist():
                    yield pa.RecordBatch.from_pydict({"outcome": [pickle.dumps(_outcome(make, tasks[place]))]})

        with self.reported():
            # One number in each partition, so that each item is one task of Spark.
            numbers = self.session.range(0, len(tasks), 1, len(tasks))
            outcomes = numbers.mapInArrow(run, "outcome binary").toArrow()["outcome"]
        results = []
        for outcome in map(pickle.loads, outcomes.to_pylist()):
            if isinstance(outcome, InputError):
                raise outcome
            results.append(outcome)
        return results


def _outcome(make: Callable[[Item], Result], item: Item) -> Result | InputError:
    # The user's mistake is returned as a result: Spark would retry a raised error three times, as it does for storage.
    try:
        return make(item)
    except InputError as error:
        return error


def _reason(text: str) -> str:
    """Returns the line with the cause in an exception of Spark."""
    lines = text.strip().splitlines() or ["no reason was given"]
    if missing := re.search(r"ModuleNotFoundError: (No module named .*)", text):
        return f"{missing[1]} on its workers; install torchx-recsys there, for the Python that PYSPARK_PYTHON names"
    if raised := PYTHON_ERROR.search(text):
        return raised[1]
    # Java's exception follows the name of the called method.
    return next((line for line in lines if "Exception: " in line), lines[0]).strip(": ")


def _cancel_if_alone(context: Any) -> None:
    """Cancels all jobs when all executors are lost and none returns: Spark itself would wait forever."""
    had, last = False, time.monotonic()
    with suppress(Exception):  # Spark has ended
        while True:
            time.sleep(5)
            executors = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # this process counts as one
            had, last = had or executors > 0, time.monotonic() if executors > 0 else last
            if had and time.monotonic() - last > ALONE_SECONDS:
                context.cancelAllJobs()
