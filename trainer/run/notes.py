"""Notes of the ranks to each other in the store of the process group, which works while a collective hangs."""

import json
import math
import time
from collections.abc import Collection
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from trainer.core.distributed import DistributedContext

POLL_SECONDS = 0.1
RANK0 = frozenset({0})
"""The ranks of a note that only rank 0 writes."""


class Notes:
    """Notes of the ranks, one of each rank on a subject.

    Args:
        context: This process among the ranks.
        about: What they are about, so that they do not mix with other keys of the store.
    """

    def __init__(self, context: DistributedContext, about: str) -> None:
        self._rank, self._ranks = context.rank, range(context.world_size)
        # Cloned, as a collective locks the store while it waits there for the address of a dead rank.
        store = _get_default_store().clone()  # pyrefly: ignore[missing-attribute]
        self._store = dist.PrefixStore(about, store)

    def write(self, subject: str, note: Any = None) -> None:
        """Writes this rank's note, which has to be JSON."""
        self._store.set(f"{subject}/{self._rank}", json.dumps(note))

    def read(self, subject: str, ranks: Collection[int] | None = None) -> dict[int, Any]:
        """Returns the notes of ranks, or of all of them, by rank; those that there are."""
        keys = {rank: f"{subject}/{rank}" for rank in self._those(ranks)}
        return {rank: json.loads(self._store.get(key)) for rank, key in keys.items() if self._store.check([key])}

    def wait(self, subject: str, ranks: Collection[int] | None = None, seconds: float = math.inf) -> bool:
        """Waits for the notes of ranks, or of all of them, and returns whether they came in time."""
        keys = [f"{subject}/{rank}" for rank in self._those(ranks)]
        deadline = time.monotonic() + seconds
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def _those(self, ranks: Collection[int] | None) -> Collection[int]:
        return self._ranks if ranks is None else ranks
