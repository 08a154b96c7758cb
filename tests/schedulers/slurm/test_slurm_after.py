"""`-cfg after` and `after_any` of `slurm`: jobs that wait for jobs, on a real Slurm."""

import pytest
from slurm_shell import Shell, number

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.more("a training on Slurm stands for all, and local jobs that wait for jobs"),
]


@pytest.fixture
def shell(clusters, tmp_path):
    return Shell(clusters(True), tmp_path)


def until(file):
    """Returns lines of bash that wait for a file."""
    return f"until [ -e {file} ]; do sleep 0.1; done"


def test_a_job_starts_after_another_that_is_requeued(shell, tmp_path):
    go, twice = tmp_path / "go", f"echo x >> {tmp_path}/attempts; [ $(wc -l < {tmp_path}/attempts) = 3 ] || exit 5"
    first = shell.shell_job(f"echo 'step 400/2,000  loss 0.5'; {until(go)}; {twice}", "--max_retries", "2")
    second = shell.shell_job(f"[ $(wc -l < {tmp_path}/attempts) = 3 ]", cfg=f"after={first}")
    shell.wait(first, "RUNNING")
    while "step" not in (status := shell.status(second))["msg"]:
        assert status["state"] == "PENDING"
    assert f"waits for {first} (RUNNING, step 400/2,000)" in status["msg"]
    assert shell.status(first)["msg"].startswith("running, step 400/2,000; replica 0 on ")
    go.touch()
    assert shell.wait(second)["state"] == "SUCCEEDED"
    assert shell.status(first)["num_restarts"] == 2


@pytest.mark.parametrize("end", ["fails", "is cancelled", "is cancelled in the queue"])
def test_it_does_not_start_after_one_that_did_not_succeed(shell, tmp_path, end):
    queued = ",begin=now+1hour" if "queue" in end else ""
    first = shell.shell_job(f"{until(tmp_path / 'go')}; exit 3", cfg=queued.strip(","))
    second = shell.shell_job(f"touch {tmp_path}/started", cfg=f"after={first}")
    either_way = shell.shell_job("true", cfg=f"after_any={first}")
    assert f"waits for {first} (" in shell.wait(second, "PENDING")["msg"]
    if end == "fails":
        (tmp_path / "go").touch()
    else:
        shell.torchx("cancel", first)
    status = shell.wait(second)
    assert status["state"] == "CANCELLED"
    ended = "FAILED" if end == "fails" else "CANCELLED"
    assert f"not started: {first} ended as {ended}" in status["msg"]
    assert shell.wait(either_way)["state"] == "SUCCEEDED"
    assert not (tmp_path / "started").exists()


def test_jobs_that_have_ended_already(shell):
    good, bad = shell.shell_job("true"), shell.shell_job("exit 3")
    assert (shell.wait(good)["state"], shell.wait(bad)["state"]) == ("SUCCEEDED", "FAILED")
    then = shell.shell_job("true", cfg=f"after={good},after_any={bad}")
    assert shell.wait(then)["state"] == "SUCCEEDED"
    before, folders = shell.listed(), [*(shell.folder / "slurm-jobs").iterdir()]
    for cfg, message in {
        f"after={bad}": f"-cfg after={bad}: this job has ended as FAILED; nothing was submitted",
        "after=slurm://torchx/99999": "-cfg after=slurm://torchx/99999: no such job; nothing was submitted",
        "after=slurm://torchx/x": "-cfg after=slurm://torchx/x: must end with the number of a Slurm job",
        f"after={good},dependency=singleton": "-cfg dependency=singleton: cannot be used beside after and after_any",
    }.items():
        done = shell.try_torchx("run", "-s", "slurm", "-cfg", cfg, "utils.sh", "--memMB", "100", "--", "true")
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1].startswith(f"torchx run: error: {message}")
    assert shell.listed() == before
    assert [*(shell.folder / "slurm-jobs").iterdir()] == folders


def test_a_dry_run_says_what_is_submitted_and_the_script_runs_again(shell):
    first = shell.shell_job("true")
    words = ("run", "-s", "slurm", "--dryrun", "-cfg", f"after={first}", "utils.sh", "--", "true")
    assert f"# submitted with --dependency=afterok:{number(first)} --kill-on-invalid-dep=yes" in shell.torchx(*words)
    then = shell.shell_job("true", cfg=f"after={first}")
    assert "dependency" not in (shell.job_dir(then) / "torchx-job.sh").read_text()
