"""The trainer as a user starts it: `python -m trainer`, or the same under torchrun."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tomli_w
from forked import QUIET, ForkedTrainer


def run_trainer(
    *arguments: object, ranks: int = 1, seconds: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m trainer ARGUMENTS` on the CPU, more than one rank under torchrun, and returns how it ended."""
    words, variables = [str(word) for word in arguments], os.environ | QUIET | environment
    if ranks > 1 or "PYTHONPATH" in environment:
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [sys.executable, *torchrun, "-m", "trainer", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=variables)
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        code = ForkedTrainer(words, variables, output, errors).wait(seconds)
        return subprocess.CompletedProcess(words, code, output.read_text(), errors.read_text())


def write_config(file: Path, tree: dict) -> Path:
    """Writes a configuration as a TOML file and returns it."""
    file.write_text(tomli_w.dumps(tree))
    return file
