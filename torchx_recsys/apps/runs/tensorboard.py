"""`python -m trainer tensorboard`: TensorBoard for existing runs."""

import os
import posixpath
import sys

from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named


def tensorboard(*arguments: str, logdir: str = "runs", port: int = 6006, host: str = "localhost") -> None:
    """Serves TensorBoard for one run directory or for a directory of them.

    Args:
        arguments: After `--`, more arguments of TensorBoard.
        logdir: Directory whose event files are shown, at any depth; any fsspec URL.
        port: Port to serve at.
        host: Address to serve at; 0.0.0.0 lets other hosts connect.

    Raises:
        InputError: There is no such directory.
    """
    directory = RunDirectory(logdir, "--logdir")
    shown = without_secrets(logdir)
    with named("--logdir", logdir):
        if not directory.fs.isdir(directory.path()):
            raise InputError(f"--logdir is '{shown}', which is no directory; name a directory of runs, or a run's own")
        is_run = directory.fs.isfile(directory.path("config.toml"))
        has_events = any("tfevents" in file for _, _, files in directory.fs.walk(directory.path()) for file in files)
    if not has_events:
        print(f"'{shown}' holds no events yet; the page shows them once a run there has written some", flush=True)
    source = _as_run(directory) if is_run else ["--logdir", directory.url]
    words = [*source, "--port", str(port), "--host", host, *arguments]
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tensorboard.main", *words])


def _as_run(directory: RunDirectory) -> list[str]:
    """Returns the flag that shows a run as NAME/tensorboard, its name in a directory of runs."""
    name, url = posixpath.basename(directory.path()), directory.url
    if ":" in name or "," in name + url:  # characters that separate names and directories
        return ["--logdir", url]
    return ["--logdir_spec", f"{name}:{url}"]
