"""A disk on which a save takes long enough to be interrupted: `slow://PATH`.

fsspec learns of it from slow_storage-0.dist-info beside this file, in every process that tests start.
"""

import os
import time
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

OPEN_SECONDS = 0.02  # to begin a file of a checkpoint; a save writes six, one after the other
SLOWER_SECONDS = 1.2  # the same, while there is the file that `SLOWER` names


class SlowFileSystem(LocalFileSystem):
    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("slow://"))

    def _open(self, path, mode="rb", **kwargs):
        if mode == "wb" and "/checkpoints/" in path:
            slower = Path(os.environ.get("SLOWER", "/nowhere/slower")).exists()
            time.sleep(SLOWER_SECONDS if slower else OPEN_SECONDS)
        return super()._open(path, mode, **kwargs)
