"""Training on `local_cwd`, started in one shell and watched and ended in others: no step is lost."""

import os
import signal
from pathlib import Path

import pytest
from command import write_config
from jobs import config, losses, write_rows
from shells import Shells, wait_for

STEPS = 150
TRAIN = ("dlrm.multi_node", "--config", "config.toml", "-j", "2x1", "--env", "OMP_NUM_THREADS=1", "--out")


@pytest.fixture(scope="module")
def torchx(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    rows = write_rows(home / "rows", [130, 126])
    write_config(home / "config.toml", config(rows, train__steps=STEPS, checkpoint__every_steps=20))
    shells = Shells(home)
    yield shells
    for shell in shells.opened:
        shell.kill()
        shell.communicate()


@pytest.fixture(scope="module")
def undisturbed(torchx):
    """The losses of a run that nobody disturbs."""
    shell = torchx.open("run", "-s", "local_cwd", *TRAIN, "undisturbed")
    out, said = shell.communicate(timeout=120)
    assert shell.returncode == 0, said
    assert torchx.status(out.strip())["msg"] == f"finished at step {STEPS}"
    return losses(torchx.home / "undisturbed")


def steps_done(run: Path) -> int:
    return (run / "metrics.jsonl").read_text().count("\n") if (run / "metrics.jsonl").exists() else 0


def processes(handle: str, **variables: str) -> list[int]:
    """The processes of a job whose environment has these variables."""
    wanted = {f"{name}={value}".encode() for name, value in {"TORCHX_JOB_ID": handle, **variables}.items()}
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted <= set(environ.read_bytes().split(b"\0")):
                found.append(int(environ.parent.name))
        except OSError:
            continue
    return found


def test_cancelled_from_another_shell_it_saves_and_goes_on_later(torchx, undisturbed):
    handle = torchx.detached(*TRAIN, "cancelled")
    follower = torchx.open("log", "-f", f"{handle}/trainer/0")
    wait_for(lambda: steps_done(torchx.home / "cancelled") > 20)
    assert torchx.status(handle)["state"] == "RUNNING"
    assert [handle, "dlrm", "RUNNING"] in [
        line.split() for line in torchx("list", "-s", "local_cwd").stdout.split("\n")
    ]
    torchx("cancel", handle)
    status = torchx.wait_for_end(handle)
    assert status["state"] == "CANCELLED"
    assert status["msg"].startswith("stopped at step ")
    followed = follower.communicate(timeout=60)[0]
    assert "[rank 0]" in followed
    assert "[rank 1]" not in followed
    assert processes(handle) == []
    again = torchx.open("run", "-s", "local_cwd", *TRAIN, "cancelled")
    said = again.communicate(timeout=120)[1]
    assert again.returncode == 0, said
    assert "going on after step" in said
    assert losses(torchx.home / "cancelled") == undisturbed


@pytest.mark.parametrize(
    ("sent", "rank", "retries"),
    [pytest.param(signal.SIGKILL, "1", 1, id="crash"), pytest.param(signal.SIGTERM, None, 0, id="preemption")],
)
def test_a_disturbed_run_is_taken_up_again_by_itself(torchx, undisturbed, sent, rank, retries, request):
    """A rank is killed: a failure, which is retried. torchrun is asked to stop: no failure, and taken up as well."""
    out = request.node.callspec.id
    handle = torchx.detached(*TRAIN, out, "--max_retries", retries)
    wait_for(lambda: steps_done(torchx.home / out) > 30)
    ranks = processes(handle, RANK=rank) if rank else processes(handle)
    os.kill(ranks[0], sent)
    status = torchx.wait_for_end(handle)
    assert (status["state"], status["msg"]) == ("SUCCEEDED", f"finished at step {STEPS}"), torchx("log", handle).stdout
    assert status["num_restarts"] == 1
    assert losses(torchx.home / out) == undisturbed
