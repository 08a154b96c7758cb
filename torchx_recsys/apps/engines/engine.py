"""The interface of engines, which compute the parts of a data job."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from torchx_recsys.apps.engines.spark import Spark
from torchx_recsys.apps.engines.threads import Threads

Item = TypeVar("Item")
Result = TypeVar("Result")


class Engine(Protocol):
    """Computes the parts of a job at the same time."""

    def map(
        self, make: Callable[[Item], Result], items: Iterable[Item], stop: Callable[[], None] = ...
    ) -> Iterator[Result]:
        """Yields `make(item)` for every item, in the order of completion. The first error cancels the rest.

        Args:
            make: The function.
            items: The arguments.
            stop: Called at the end or at the first error, to make running calls in this process return.
        """
        ...


def engine_of(name: str, job: str, workers: int = 0) -> Engine:
    """Returns an engine.

    Args:
        name: `threads`, or a URL of Spark.
        job: Name of the job, for Spark's pages.
        workers: Threads. 0: one per core that this process may use.

    Raises:
        InputError: pyspark is not installed, or `workers` is negative.
        StorageError: Spark cannot be reached.
    """
    return Threads(workers) if name == "threads" else Spark(name, job)
