"""The trainer as a user starts it: `python -m trainer`, or the same under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import tomli_w


def run_trainer(
    *arguments: object, ranks: int = 1, seconds: float = 600, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `python -m trainer ARGUMENTS` on the CPU, more than one rank under torchrun, and returns how it ended."""
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *torchrun, "-m", "trainer", *map(str, arguments)]
    always = {"TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, env=os.environ | always | environment
    )


def write_config(file: Path, tree: dict) -> Path:
    """Writes a configuration as a TOML file and returns it."""
    file.write_text(tomli_w.dumps(tree))
    return file
