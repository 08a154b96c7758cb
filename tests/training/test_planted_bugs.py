"""A bug ends a job with a traceback and exit code 1, whatever the type of its error; it is no wrong input."""

import os
import subprocess
import sys

import pytest
from command import run_trainer, write_config
from jobs import config

PATCHED = """
import sys
from trainer.__main__ import main
from trainer.training.session import Session

def record(*arguments):
    first, second = [1, 2, 3]

Session.record = record
if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
"""


def assert_bug(code, stderr, error):
    assert code == 1, stderr
    assert "Traceback (most recent call last)" in stderr
    assert error in stderr
    assert "error: " not in {line[: len("error: ")] for line in stderr.splitlines()}


@pytest.mark.parametrize(
    ("model", "error", "ranks"),
    [("UnequalZip", "ValueError: zip() argument 2 is longer than argument 1", 2), ("EmptyMax", "ValueError: max()", 1)],
)
def test_a_bug_in_a_model_keeps_its_traceback(rows, tmp_path, model, error, ranks):
    file = write_config(tmp_path / "config.toml", config(rows, model__name=f"broken_models:{model}", train__steps=2))
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=ranks)
    assert_bug(done.returncode, done.stderr, error)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_bug_in_the_trainer_keeps_its_traceback(rows, tmp_path, ranks):
    (tmp_path / "patched.py").write_text(PATCHED)
    file = write_config(tmp_path / "config.toml", config(rows, train__steps=2))
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *torchrun, tmp_path / "patched.py", "train", file, "--out", tmp_path / "out"]
    environment = os.environ | {"TQDM_DISABLE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert_bug(done.returncode, done.stderr, "ValueError: too many values to unpack (expected 2)")
