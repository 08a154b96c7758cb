import os

import pytest
from command import run_torchx


@pytest.fixture
def torchx(tmp_path):
    """Runs the `torchx` command in an empty directory, with no configuration of the user's."""

    def run(*args, **env):
        return run_torchx(*args, cwd=tmp_path, **{"HOME": str(tmp_path), "COLUMNS": "200"} | env)

    return run


@pytest.fixture
def fake_torchrun(tmp_path_factory):
    """A PATH on which `python -m trainer.launch` only prints its arguments, one a line."""
    bin_dir = tmp_path_factory.mktemp("bin")
    script = bin_dir / "python"
    script.write_text("#!/bin/sh\nshift 2\nprintf '%s\\n' \"$@\"\n")
    script.chmod(0o755)
    return f"{bin_dir}:{os.environ['PATH']}"
