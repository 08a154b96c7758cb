"""Fails if a path, glob or URL names nothing: `probe_readable URL`."""

import sys

from fsspec.core import url_to_fs

files, path = url_to_fs(sys.argv[1])
if not files.exists(path) and not files.glob(path):
    raise FileNotFoundError("there is nothing of this name")
