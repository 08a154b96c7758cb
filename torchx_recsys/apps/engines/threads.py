"""Computes the parts of a job in threads of this process."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

from trainer.core.errors import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """Threads of this process, for functions that spend their time in Arrow, NumPy or files.

    Args:
        workers: Threads. 0: one per core that this process may use.

    Raises:
        InputError: `workers` is negative.
    """

    def __init__(self, workers: int = 0) -> None:
        if workers < 0:
            raise InputError(f"--workers is {workers}; it must be 0 (one per core) or more")
        # Not os.cpu_count() alone: in a container it counts all cores of the machine.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        self._workers = workers or cores

    def map(
        self, make: Callable[[Item], Result], items: Iterable[Item], stop: Callable[[], None] = lambda: None
    ) -> Iterator[Result]:
        """Yields `make(item)` for every item; see `Engine.map`."""
        pool = ThreadPoolExecutor(self._workers)
        try:
            for done in as_completed([pool.submit(make, item) for item in items]):
                yield done.result()
        finally:
            stop()
            pool.shutdown(cancel_futures=True)
