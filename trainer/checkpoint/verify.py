"""Verifies a checkpoint on all ranks together: each rank reads a part of its files."""

from collections.abc import Callable
from typing import TypeVar

from trainer.checkpoint.store import FileEntry, FindDamage, find_damage
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, broadcast_object, gather_to_all
from trainer.core.storage import Storage, open_storage

T = TypeVar("T")
Task = tuple[str, dict[str, FileEntry]]
"""The URL of a directory, and the files in it to verify."""


def verify_together(context: DistributedContext, act: Callable[[FindDamage], T]) -> T:
    """Calls `act` on rank 0 with a function that verifies files on all ranks; returns the result on every rank.

    Only rank 0 decides which checkpoint to verify next, because ranks may see different states of the storage. The
    other ranks serve its requests. A single rank would need a quarter of an hour for a terabyte.

    Raises:
        InputError: `act` has raised it, as with `broadcast_from_rank0`.
    """
    if context.world_size == 1:
        return act(find_damage)
    if not context.is_rank0:
        while task := broadcast_object(context, None):
            _verify_part(context, task)
    return broadcast_from_rank0(context, lambda: _lead(context, act))


def _lead(context: DistributedContext, act: Callable[[FindDamage], T]) -> T:
    def find(fs: Storage, directory: str, entries: dict[str, FileEntry]) -> str | None:
        task = broadcast_object(context, (fs.url_of(directory), entries))
        assert task
        return _verify_part(context, task)

    try:
        return act(find)
    finally:
        broadcast_object(context, None)


def _verify_part(context: DistributedContext, task: Task) -> str | None:
    """Verifies this rank's part of the files; returns the damage found by any rank."""
    url, entries = task
    fs, path = open_storage(url)
    found = find_damage(fs, path, part_of_rank(entries, context.rank, context.world_size))
    return next(filter(None, gather_to_all(found, context)), None)


def part_of_rank(entries: dict[str, FileEntry], rank: int, world_size: int) -> dict[str, FileEntry]:
    """Returns the files that a rank reads. They are dealt from the largest on, to the ranks in turn, there and back."""
    names = sorted(entries, key=lambda name: (-entries[name]["bytes"], name))
    turn = [*range(world_size), *reversed(range(world_size))]
    return {name: entries[name] for place, name in enumerate(names) if turn[place % len(turn)] == rank}
