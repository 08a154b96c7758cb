"""`--seeds`: runs that share nothing, as a job array on a real Slurm."""

import json
import shutil

import job_array
import pytest
from command import run_trainer, write_config
from jobs import config, losses
from slurm_shell import Shell, number

from schedulers.slurm.commands import job_of
from schedulers.slurm.record import SCRIPT
from schedulers.slurm.transport import HERE

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.more("a training on Slurm stands for all, and local jobs of several seeds"),
]


@pytest.fixture
def shell(clusters, tmp_path):
    shutil.copy(job_array.__file__, tmp_path / "arrays.py")
    return Shell(clusters(True), tmp_path)


@pytest.fixture
def submit(shell):
    """Submits a line of bash for the seeds 5, 6 and 7; returns the handle."""

    def submit(line, *flags, cfg=""):
        return shell.submit("arrays.py:bash", "--line", line, "--seeds", "5,6,7", *flags, cfg=cfg)

    return submit


def states(status):
    """The state of each run, by its role."""
    lines = (line.partition(": ") for line in status["msg"].splitlines())
    return {role: message.partition(",")[0] for role, _, message in lines}


def test_each_run_ends_on_its_own_and_one_is_retried(shell, submit, tmp_path):
    go = tmp_path / "go"
    once = f"[ $SEED = 6 ] && [ ! -e {tmp_path}/tried ] && touch {tmp_path}/tried && exit 4"
    handle = submit(
        f"echo of $SEED, $TORCHX_JOB_ID; {once}; until [ -e {go} ]; do sleep 0.1; done; [ $SEED != 7 ]",
        "--max_retries",
        "1",
    )
    then = shell.shell_job("true", cfg=f"after_any={handle}")
    while states(shell.status(handle)) != dict.fromkeys(("seed-5", "seed-6", "seed-7"), "RUNNING"):
        pass
    listed = shell.torchx("list", "-s", "slurm")
    assert (listed.count("slurm://") - listed.count("waits for"), shell.listed()[handle]) == (2, "RUNNING")
    assert f"waits for {handle} (RUNNING)" in shell.status(then)["msg"]
    go.touch()
    status = shell.wait(handle)
    assert (status["state"], status["num_restarts"]) == ("FAILED", 2)
    assert states(status) == {"seed-5": "SUCCEEDED", "seed-6": "SUCCEEDED", "seed-7": "FAILED"}
    assert [role["role"] for role in status["roles"]] == ["seed-5", "seed-6", "seed-7"]
    assert shell.torchx("log", f"{handle}/seed-6").splitlines() == [f"seed-6/0 of 6, {handle}_1"] * 2
    assert shell.status(f"{handle}_0")["state"] == "SUCCEEDED"
    assert shell.wait(then)["state"] == "SUCCEEDED"
    assert "has seed-7/0 to seed-7/0" in shell.try_torchx("log", f"{handle}/seed-7/1").stderr


def test_one_that_is_asked_to_stop_is_requeued_alone_and_all_are_cancelled(shell, submit, tmp_path):
    handle = submit(f"trap 'exit 75' USR1; echo $SEED >> {tmp_path}/starts; sleep 600 & wait")
    while not (tmp_path / "starts").exists() or len((tmp_path / "starts").read_text().split()) < 3:
        shell.status(handle)
    shell.cluster.run(
        "scancel", "--signal=USR1", "--batch", f"{number(handle)}_2"
    )  # the task with the array's own number
    while len((tmp_path / "starts").read_text().split()) < 4:
        shell.status(handle)
    assert sorted((tmp_path / "starts").read_text().split()) == ["5", "6", "7", "7"]
    shell.torchx("cancel", handle)
    status = shell.wait(handle)
    assert (status["state"], set(states(status).values())) == ("CANCELLED", {"CANCELLED"})


def test_runs_of_a_model_are_those_of_their_seeds(shell, rows, tmp_path):
    file = write_config(tmp_path / "config.toml", config(rows, train__steps=3))
    words = ("--config", str(file), "--cpu", "1", "--memMB", "700", "--out", str(tmp_path / "runs"))
    handle = shell.submit("dlrm.single_node", *words, "--seeds", "1,2")
    assert shell.wait(handle)["state"] == "SUCCEEDED", shell.torchx("log", handle)
    for seed in (1, 2):
        alone = run_trainer("train", file, "--out", tmp_path / f"alone-{seed}", "--train.seed", seed)
        assert alone.returncode == 0
        assert losses(tmp_path / f"runs/seed-{seed}") == losses(tmp_path / f"alone-{seed}")
    assert losses(tmp_path / "runs/seed-1") != losses(tmp_path / "runs/seed-2")
    assert [json.loads(line)["step"] for line in (tmp_path / "runs/seed-1/metrics.jsonl").open()] == [1, 2, 3]


def test_a_job_that_is_found_again_is_the_array(shell, submit, monkeypatch):
    handle = submit("sleep 600")
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, shell.env[name])
    assert str(job_of(HERE, shell.job_dir(handle) / SCRIPT)) == number(handle)
    shell.torchx("cancel", handle)
