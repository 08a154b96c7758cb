"""Makes the items of an iterator ahead of their use, in the background."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
END: Any = object()  # the end of an iterator, as a generator cannot pass StopIteration on


def ahead(items: Iterator[T], depth: int, pool: ThreadPoolExecutor) -> Iterator[T]:
    """Returns the items; the pool, of one thread if `depth` is above 1, makes that many ahead, from now on."""
    take = partial(pool.submit, next, items, END)
    waiting = deque(take() for _ in range(depth))

    # Not in this function's own body, which would begin when its first item is asked for: all lanes start at once.
    def wait() -> Iterator[T]:
        while (item := waiting.popleft().result()) is not END:
            waiting.append(take())
            yield item

    return wait()
