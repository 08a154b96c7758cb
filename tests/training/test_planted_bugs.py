"""A bug ends a job with a traceback and exit code 1, whatever the type of its error; it is no wrong input."""

import pytest
from command import run_trainer, write_config
from jobs import config

pytestmark = pytest.mark.more("tests of the tests")


def assert_bug(code, stderr, error):
    assert code == 1, stderr
    assert "Traceback (most recent call last)" in stderr
    assert error in stderr
    assert "error: " not in {line[: len("error: ")] for line in stderr.splitlines()}


@pytest.mark.parametrize(
    ("model", "error", "ranks"),
    [
        ("UnequalZip", "ValueError: zip() argument 2 is longer than argument 1", 2),
        ("EmptyMax", "ValueError: max()", 1),
        ("TrainerWithABug", "ValueError: too many values to unpack (expected 2)", 2),
        ("TrainerWithABug", "ValueError: too many values to unpack (expected 2)", 1),
    ],
)
def test_a_bug_keeps_its_traceback(rows, tmp_path, model, error, ranks):
    file = write_config(tmp_path / "config.toml", config(rows, model__name=f"broken_models:{model}", train__steps=2))
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=ranks)
    assert_bug(done.returncode, done.stderr, error)
