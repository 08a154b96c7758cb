"""A disk that can be full, for tests."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def mounted_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """Mounts a file system of a size below a folder."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "none", disk]
    if os.getuid() or subprocess.run(mount).returncode:
        pytest.skip("mounting a file system needs root with CAP_SYS_ADMIN; run the tests as root")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def fill(disk: Path, but: int = 0) -> None:
    """Leaves room for so many bytes."""
    with (disk / "filler").open("wb", buffering=0) as filler:
        with suppress(OSError):
            while True:
                filler.write(bytes(1000))
        filler.truncate(filler.tell() - but)
