import contextlib
import io
import os

import pytest
from command import run_torchx
from torchx.cli.main import main


@pytest.fixture
def torchx(tmp_path):
    """Runs the `torchx` command in an empty directory, with no configuration of the user's."""

    def run(*args, **env):
        return run_torchx(*args, cwd=tmp_path, **{"HOME": str(tmp_path), "COLUMNS": "200"} | env)

    return run


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """The same in this process, where everything is loaded already; returns what it printed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main([*words])
        return printed.getvalue()

    return run


@pytest.fixture
def fake_torchrun(tmp_path_factory):
    """A PATH on which `python -m trainer.launch` only prints its arguments, one a line."""
    bin_dir = tmp_path_factory.mktemp("bin")
    script = bin_dir / "python"
    script.write_text("#!/bin/sh\nshift 3\nprintf '%s\\n' \"$@\"\n")
    script.chmod(0o755)
    return f"{bin_dir}:{os.environ['PATH']}"
