"""Memory: how much a host has, and errors that name the largest tables."""

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from torchx_recsys.planner.hardware import GIB
from trainer.core.errors import InputError

LARGEST = 3  # tables that a message names


def host_memory_bytes(
    groups: Path = Path("/proc/self/cgroup"), hierarchy: Path = Path("/sys/fs/cgroup"), machine: int | None = None
) -> int:
    """Returns the memory that processes here may use: the machine's, or the least limit of their control groups.

    Args:
        groups: The kernel's list of this process's control groups.
        hierarchy: Their mount point, version 1 or 2.
        machine: The machine's memory; None to ask the kernel.
    """
    machine = machine or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_limits(groups, hierarchy)])


def _limits(groups: Path, hierarchy: Path) -> Iterator[int]:
    """Yields the limits of all groups from this process's up to the root, or up to the container's root."""
    for line in groups.read_text().splitlines() if groups.exists() else []:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            group, name = hierarchy / path.lstrip("/"), "memory.max"
        elif "memory" in controllers.split(","):
            group, name = hierarchy / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        else:
            continue
        for folder in (group, *group.parents):
            with suppress(OSError, ValueError):  # not there, or "max"
                yield int((folder / name).read_text())


def table_bytes(shape: Sequence[int], value_bytes: int) -> int:
    """Returns the bytes of a table, or of a shard, without its optimizer's state."""
    return math.prod(shape) * value_bytes


@contextmanager
def allocating(tables: dict[str, tuple[int, int]], value_bytes: int) -> Iterator[None]:
    """Names the largest tables if their memory is refused.

    Args:
        tables: Rows and columns of every table.
        value_bytes: Bytes of a value.

    Raises:
        InputError: The allocator refused, on the host or on a GPU.
    """
    try:
        yield
    except RuntimeError as error:
        on_gpu = isinstance(error, torch.OutOfMemoryError)
        if not on_gpu and "can't allocate memory" not in str(error):
            raise
        largest = sorted(tables, key=lambda name: math.prod(tables[name]), reverse=True)[:LARGEST]
        named = ", ".join(f"'{name}' of {table_bytes(tables[name], value_bytes) / GIB:,.1f} GiB" for name in largest)
        key = "planner.memory_gib" if on_gpu else "planner.host_memory_gib"
        raise InputError(
            f"the memory of this rank does not hold its part of the tables; the largest are {named}; "
            f"set {key} to what a rank really has, raise planner.reserve, or use more ranks"
        ) from error
