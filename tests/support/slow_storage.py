"""A disk on which a save takes long enough to be interrupted: `slow://PATH`."""

import time
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

OPEN_SECONDS = 0.02  # to begin a file of a checkpoint; a save writes six, one after the other


class SlowFileSystem(LocalFileSystem):
    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("slow://"))

    def _open(self, path, mode="rb", **kwargs):
        if mode == "wb" and "/checkpoints/" in path:
            time.sleep(OPEN_SECONDS)
        return super()._open(path, mode, **kwargs)


def install(folder: Path) -> Path:
    """Makes a folder that lets any Python with it on its path know `slow://`, and returns it."""
    about = folder / "slow_storage-0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-storage\nVersion: 0\n")
    (about / "entry_points.txt").write_text("[fsspec.specs]\nslow = slow_storage:SlowFileSystem\n")
    return folder
