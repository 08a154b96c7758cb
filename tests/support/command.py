"""Commands as a user types them, but forked: `python -m trainer`, the same under torchrun, and `torchx`."""

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import tomli_w
from forked import QUIET, ForkedProcess, start_forked, torchrun, torchx, trainer

from components.launch import SIGNALS
from trainer.config.root import Config, load_config


def run_trainer(
    *arguments: object, ranks: int = 0, seconds: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m trainer ARGUMENTS` on the CPU and returns how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        code = start_trainer(arguments, output, errors, ranks, **environment).wait(seconds)
        return subprocess.CompletedProcess(arguments, code, output.read_text(), errors.read_text())


def start_trainer(
    arguments: Iterable[object], output: Path, errors: Path, ranks: int, restarts: int = 0, **environment: str
) -> ForkedProcess:
    """Starts `python -m trainer ARGUMENTS` on the CPU, under torchrun unless `ranks` is 0."""
    words, variables = [str(word) for word in arguments], os.environ | QUIET | environment
    if not ranks:
        return start_forked(trainer, *words, environment=variables, output=output, errors=errors)
    flags = f"--nproc-per-node {ranks} --max-restarts {restarts} --signals-to-handle {SIGNALS} -m trainer"
    return start_forked(torchrun, *flags.split(), *words, environment=variables, output=output, errors=errors)


def run_torchx(
    *words: str, cwd: Path, user: str = "", hidden: Sequence[Path] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `torchx WORDS` in a directory, as a user, who is ours if unset, and returns how it ended.

    Directories that are hidden are empty to it.
    """
    with tempfile.TemporaryDirectory() as folder:
        output, errors, variables = Path(folder, "output"), Path(folder, "errors"), os.environ | environment
        streams = {"output": output, "errors": errors}
        process = start_forked(torchx, *words, environment=variables, folder=cwd, user=user, hidden=hidden, **streams)
        return subprocess.CompletedProcess(words, process.wait(600), output.read_text(), errors.read_text())


def write_config(file: Path, tree: dict) -> Path:
    """Writes a configuration as a TOML file and returns it."""
    file.write_text(tomli_w.dumps(tree))
    return file


def load_text(folder: Path, text: str) -> Config:
    """Returns the configuration that a file of this text, written into the folder, is read as."""
    file = folder / "config.toml"
    file.write_text(text)
    return load_config(str(file))
