"""The preflight before training: it measures hosts, warns of the slow ones, and names those that do not answer."""

import contextlib
import os
import re
import signal
import socket
import time

import pytest
from command import run_trainer, write_config
from disturbed import FROZEN, train
from forked import QUIET, start_forked
from jobs import config

from trainer.extensions.preflight import partners

HOST = re.escape(socket.gethostname())
STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # as our components start torchrun: rank 0 hosts the store


@pytest.fixture
def file(rows, tmp_path):
    return write_config(tmp_path / "config.toml", config(rows, train__steps=2, data__global_batch_size=72))


def run_disturbed(rank, disturbance, file, out, seconds):
    """Trains on three ranks, one of them disturbed; returns the exit code and the output."""
    log = out.with_suffix(".log")
    log.touch()
    words = ["train", str(file), "--out", str(out), "--train.preflight-seconds", str(seconds)]
    process = start_forked(
        train, 3, rank, disturbance, *words, environment=os.environ | QUIET | STORE, output=log, errors=log
    )
    try:
        deadline = time.monotonic() + 600
        while process.poll() is None:
            assert time.monotonic() < deadline, log.read_text()
            output = log.read_text()
            if "error: preflight" in output and (frozen := re.search(rf"{FROZEN}(\d+)", output)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(frozen[1]), signal.SIGKILL)  # torchrun would wait half a minute for it to end
            time.sleep(0.1)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait(), log.read_text()


def test_every_host_is_measured(file, tmp_path):
    done = run_trainer("train", file, "--out", tmp_path / "out", "--train.preflight-seconds", 300, ranks=2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.search(r"^preflight: all-reduce at \d+\.\d\d GB/s per rank", done.stdout, re.MULTILINE), done.stdout
    assert re.search(rf"^{HOST} +[01] +\d+\.\d\d$", done.stdout, re.MULTILINE), done.stdout
    assert "warning" not in done.stdout


def test_a_slow_rank_is_named_and_the_job_goes_on(file, tmp_path):
    code, output = run_disturbed(2, "slow_down", file, tmp_path / "out", 300)
    assert code == 0, output[-3000:]
    assert re.search(rf"^{HOST} +2 +0\.\d\d$", output, re.MULTILINE), output
    assert re.search(rf"^warning: rank 2 on {HOST} exchanged data at less than 50% of", output, re.MULTILINE), output
    assert "step 2/2" in output


@pytest.mark.few(1, "one stands for all")
@pytest.mark.sample(1)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_does_not_answer_is_named(file, tmp_path, rank):
    host = HOST if rank else "localhost"  # as torchrun names it, since the store stands still, too
    code, output = run_disturbed(rank, "freeze", file, tmp_path / "out", 5)
    assert code == 1, output[-3000:]
    assert re.search(rf"^error: preflight: rank {rank} on {host} did not answer within", output, re.MULTILINE), output
    assert not (tmp_path / "out").exists()  # nothing to clean up before the next attempt


@pytest.mark.more("a rank that does not answer stands for it")
def test_two_ranks_that_cannot_exchange_data_are_named(file, tmp_path):
    code, output = run_disturbed(2, "cut_off", file, tmp_path / "out", 5)
    assert code == 1, output[-3000:]
    between = rf"rank [01] on {HOST} and rank 2 on {HOST}"
    assert re.search(rf"^error: preflight: no data passed between {between} within", output, re.MULTILINE), output
    assert output.count("error: preflight") == 1
    assert "LostRankError: preflight: no data passed" in output  # torchrun's summary shows it, too


@pytest.mark.more("a rank that does not answer stands for it")
def test_a_rank_whose_network_fails_is_named_with_the_reason(file, tmp_path):
    code, output = run_disturbed(2, "fail", file, tmp_path / "out", 5)
    assert code == 1, output[-3000:]
    assert re.search(rf"^error: preflight: rank 2 on {HOST} failed with 'no route' within", output, re.MULTILINE), (
        output
    )


def test_a_single_rank_has_no_preflight(file, tmp_path):
    done = run_trainer("train", file, "--out", tmp_path / "out", "--train.preflight-seconds", 5)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "preflight" not in done.stdout


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("hosts", range(1, 12))
def test_ranks_meet_several_others_on_other_hosts_in_one_order(hosts, size):
    names = [f"host{number}" for number in range(hosts) for _ in range(size)]
    left = {rank: partners(names, rank) for rank in range(len(names))}
    for rank, met in left.items():
        assert len({*met} - {rank}) == len(met) >= min(2, len(names) - 1 if hosts == 1 else len(names) - size)
        assert hosts == 1 or all(names[other] != names[rank] for other in met)
    while pairs := [(rank, met[0]) for rank, met in left.items() if met and left[met[0]][:1] == [rank]]:
        for rank, _ in pairs:
            left[rank] = left[rank][1:]
    assert not any(left.values())  # or else ranks would wait for one another forever


def test_a_rank_without_a_counterpart_meets_nobody():
    names = ["a", "a", "b"]
    assert [partners(names, rank) for rank in range(3)] == [[2], [], [0]]
