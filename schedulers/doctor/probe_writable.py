"""Writes, reads and removes a file in a directory, or in the nearest one that exists: `probe_writable URL`."""

import os
import sys

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

CONTENT = b"written by torchx doctor"

files, folder = url_to_fs(sys.argv[1])
while isinstance(files, LocalFileSystem) and not files.exists(folder):
    folder = files._parent(folder)
probe = f"{folder.rstrip('/')}/.torchx-doctor-{os.getpid()}"
files.pipe_file(probe, CONTENT)
assert files.cat_file(probe) == CONTENT
files.rm_file(probe)
