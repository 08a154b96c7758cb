"""What is recorded of a submitted job for `torchx tracker`."""

import os

import pytest
from torchx.specs import AppDef, AppDryRunInfo, Role

from schedulers.job_records import JobRecords, remember


@pytest.mark.parametrize(
    ("handle", "out"),
    [
        ("local_cwd://torchx/dlrm-abc", os.path.abspath("runs/dlrm-abc")),
        ("slurm://torchx/7", os.path.abspath("runs/7")),
        ("slurm://torchx/login.example:7", "runs/7"),
        ("jobset://torchx/ads:dlrm-abc", "runs/dlrm-abc"),
    ],
)
def test_a_relative_directory_is_that_of_the_jobs_own_machine(handle, out, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    words = ["-P", "-m", "trainer", "train", "mine.toml", "--out", "runs/${app_id}"]
    request = AppDryRunInfo(None, str)
    request.app = AppDef("dlrm", roles=[Role("trainer", "", entrypoint="python", args=words)])
    assert remember(handle, request) == handle
    (role,) = JobRecords().lines(handle, "role")
    assert role["--out"] == out
