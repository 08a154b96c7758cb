"""Walks through a directory of a local disk and the directories that links in it lead to, through each once."""

import heapq
import os
from collections.abc import Callable, Iterator

from trainer.data.left_out import CLOSED, HIDDEN, LISTED_ALREADY, HiddenNames, LeftOutPaths


def walk(
    top: str, wanted: Callable[[str], object], hidden: HiddenNames, left_out: LeftOutPaths, depth: int | None = None
) -> Iterator[os.DirEntry[str]]:
    """Yields files and directories below a directory; faster than fsspec's `find` and in a tenth of the memory.

    Links are followed last, so that a file keeps the path that has no linked directory in it. A link that leads up, or
    to what was walked through, is left out, so that no walk goes in a loop, or through a directory twice.

    Args:
        top: The directory.
        wanted: Whether to yield what has this path.
        hidden: Names to leave out.
        left_out: Gets what is left out.
        depth: Levels below the directory to walk through. Unset: all.
    """
    real_top = os.path.realpath(top)
    folders, links, walked = [(top, real_top, 1)], list[tuple[str, str, int]](), set[str]()
    while folders or links:
        if folders:
            folder, real, level = folders.pop()
        else:
            folder, place, level = heapq.heappop(links)
            real = os.path.realpath(folder)
            if _is_above(real, place) or _is_above(real, real_top):
                left_out.add(LISTED_ALREADY, folder)
                continue
        if real in walked:
            left_out.add(LISTED_ALREADY, folder)
            continue
        walked.add(real)
        try:
            entries = os.scandir(folder)
        except PermissionError:  # such as lost+found, which only root may list
            left_out.add(CLOSED, folder)
            continue
        goes_on = depth is None or level < depth
        with entries:
            for entry in entries:
                if entry.name in hidden:
                    if entry.is_dir() or wanted(entry.path):
                        left_out.add(HIDDEN, entry.path)
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if goes_on:
                        folders.append((entry.path, f"{real}/{entry.name}", level + 1))
                elif goes_on and entry.is_symlink() and entry.is_dir():
                    heapq.heappush(links, (entry.path, real, level + 1))
                if wanted(entry.path):
                    yield entry


def _is_above(folder: str, other: str) -> bool:
    """Returns whether a directory is another, or has it somewhere in it."""
    return f"{other}/".startswith(f"{folder.rstrip('/')}/")
