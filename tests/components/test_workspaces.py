"""`torchx run --workspace` says where it changes nothing."""

import pytest
from command import run_torchx

ECHO = ("utils.echo", "--msg", "x")


@pytest.fixture
def said(tmp_path):
    """Dry-runs a job in an empty directory, beside another, and returns what is said on stderr."""
    here = tmp_path / "here"
    here.mkdir()
    (tmp_path / "there").mkdir()

    def said(*words):
        done = run_torchx("run", "--dryrun", *words, *ECHO, cwd=here, HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        return [line for line in done.stderr.splitlines() if "workspace" in line]

    return said


@pytest.mark.parametrize(
    ("scheduler", "why"),
    [
        ("local_cwd", "local_cwd copies no workspace"),
        ("slurm", "slurm copies a workspace only with -cfg job_dir=DIRECTORY"),
    ],
)
def test_a_workspace_that_nothing_copies_is_told(said, scheduler, why):
    line = f"torchx run: --workspace ../there is ignored: {why}; the job runs in the current directory"
    assert said("-s", scheduler, "--workspace", "../there") == [line]
    for here in ((), ("--workspace", "."), ("--workspace", "")):
        assert said("-s", scheduler, *here) == []


def test_a_workspace_that_is_copied_is_not(said):
    assert said("-s", "slurm", "-cfg", "job_dir=job", "--workspace", "../there") == []
