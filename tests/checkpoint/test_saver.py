"""Saving while storage, other jobs and time do what they do."""

import json
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from command import write_config
from jobs import config, losses
from small_disk import fill, mounted_disk
from torch.distributed.checkpoint.api import CheckpointException
from trainer_process import Gate, Training, committed

from trainer.checkpoint.io import ChecksumWriter
from trainer.checkpoint.retention import expired
from trainer.checkpoint.saver import SaveFailed, Saver, Staging
from trainer.checkpoint.store import Checkpoints
from trainer.config.train import CheckpointConfig, Retention
from trainer.core.distributed import current_context
from trainer.core.outcome import saved_step
from trainer.core.run_directory import RunDirectory
from trainer.run.lock import STALE_SECONDS

STEPS = 30
FOR_EVER = ["--train.steps", "1000000", "--model.name", "custom:unhurried"]


@pytest.fixture
def file(rows, tmp_path):
    return write_config(
        tmp_path / "config.toml",
        config(rows, model__name="custom:gated", train__steps=STEPS, checkpoint__every_steps=2),
    )


@pytest.fixture(scope="module")
def baseline(rows, tmp_path_factory):
    """The losses of a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("baseline")
    file = write_config(folder / "config.toml", config(rows, train__steps=STEPS))
    job = Training(file, folder / "out", ranks=0)
    output = job.end()
    assert job.code == 0, output
    return losses(folder / "out")


def test_the_newest_the_best_and_periodic_checkpoints_are_kept(rows, tmp_path):
    tree = config(rows, train__steps=12, data__validation=[str(rows)], evaluate__every_steps=1)
    tree["checkpoint"] = {"every_steps": 1, "keep": {"newest": 2, "best": "calibration", "every_steps": 5}}
    refused = Training(write_config(tmp_path / "wrong.toml", tree), tmp_path / "out", ranks=0)
    assert "checkpoint.keep.best is 'calibration'; allowed: auc, normalized_entropy, log_loss" in refused.end()
    assert refused.code == 2
    tree["checkpoint"]["keep"]["best"] = "log_loss"
    # A step that is too long makes the loss of later steps worse than that of an earlier one.
    tree["optimizer"]["dense"]["learning_rate"] = 3.0
    job = Training(write_config(tmp_path / "config.toml", tree), tmp_path / "out", ranks=0)
    job.end()
    found = [json.loads(line) for line in (job.out / "evaluations.jsonl").read_text().splitlines()]
    scores = {line["step"]: line["log_loss"] for line in found if line["step"] < 12}
    best = min(scores, key=lambda step: scores[step])
    assert committed(job.out) == sorted({best, 5, 10, 11, 12})


@pytest.mark.parametrize(
    ("keep", "steps"),
    [
        ({"newest": 1}, [2, 4, 6]),
        ({"newest": 9}, []),
        ({"newest": 1, "every_steps": 4}, [2, 6]),
        ({"newest": 1, "best": "auc"}, [2, 6]),
        ({"newest": 1, "best": "normalized_entropy"}, [4, 6]),
        ({"newest": 1, "best": "auc/bought"}, [2, 4, 6]),
        ({"newest": 1, "segments": 1}, [2, 4]),
        ({"newest": 1, "segments": 2}, [4]),
        ({"newest": 3, "segments": 9}, []),
    ],
)
def test_checkpoints_expire_unless_a_rule_keeps_them(keep, steps):
    evaluations = [
        {"step": 1, "split": "validation", "auc": 0.99, "normalized_entropy": 0.1},  # has no checkpoint
        {"step": 2, "split": "validation", "auc": 0.7, "normalized_entropy": 0.7},
        {"step": 4, "split": "validation", "auc": 0.8, "normalized_entropy": 0.9},
        {"step": 6, "split": "validation", "auc": float("nan"), "normalized_entropy": 0.8},
        {"step": 6, "split": "test", "auc": 0.9, "normalized_entropy": 0.1},
    ]
    assert expired(Retention(**keep), [2, 4, 6, 8], evaluations, {2: "mon", 6: "tue"}, {}) == steps


# Not by the usage of a child: that counts the memory of its parent, too, from between fork and exec.
PEAK = """
import sys
from pathlib import Path

from trainer.__main__ import main

code = main(sys.argv[1:])
print(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
sys.exit(code)
"""


def test_a_save_that_training_waits_for_takes_no_memory_and_is_the_same(rows, tmp_path):
    tables = {f"s{number}": {"rows": 1_000_000} for number in range(2)}
    state = len(tables) * 1_000_000 * 64 * 4
    peak, saved = {}, {}
    for asynchronous in (True, False):
        out = tmp_path / str(asynchronous)
        tree = config(rows, data__sparse=tables, model__embedding_dim=64, train__steps=2)
        tree["checkpoint"] = {"asynchronous": asynchronous}
        file = write_config(tmp_path / "config.toml", tree)
        command = [sys.executable, "-c", PEAK, "train", file, "--out", out]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peak[asynchronous] = int(printed.split()[-1]) * 1024
        saved[asynchronous] = {one.name: one.read_bytes() for one in out.glob("checkpoints/*/*.distcp")}
    assert peak[True] - peak[False] > 0.8 * state
    assert saved[True] == saved[False]
    assert sum(map(len, saved[True].values())) > state


SYNCS = """
import json
import os
import sys

from trainer.__main__ import main

synced, fsync = {}, os.fsync


def spy(file):
    path = os.readlink(f"/proc/self/fd/{file}")
    fsync(file)
    synced[os.stat(file).st_ino] = [path, os.fstat(file).st_size]


os.fsync = spy
code = main(sys.argv[1:])
with open(os.environ["SYNCED"], "w") as out:
    json.dump(synced, out)
sys.exit(code)
"""


@pytest.mark.more("rare")
def test_a_committed_checkpoint_survives_a_power_cut(file, tmp_path):
    """Every file of it was synced at its full length, and so were the directories that name them."""
    arguments = ["train", file, "--out", tmp_path / "out", "--train.steps", 4]
    environment = os.environ | {"SYNCED": str(tmp_path / "synced.json")}
    done = subprocess.run([sys.executable, "-c", SYNCS, *map(str, arguments)], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    synced = json.loads((tmp_path / "synced.json").read_text())
    checkpoint = tmp_path / "out/checkpoints/step-000000004"
    names = {path.name for path in checkpoint.iterdir()}
    assert names > {"manifest.json", "state.json", ".metadata", "__0_0.distcp"}
    for path in checkpoint.iterdir():
        assert synced[str(path.stat().st_ino)][1] == path.stat().st_size, path
    paths = {path for path, _ in synced.values()}
    assert {str(checkpoint), str(checkpoint.parent)} <= paths


@pytest.mark.more("waits")
def test_saving_every_so_many_minutes(rows, tmp_path):
    tree = config(rows, model__name="custom:unhurried", train__steps=100_000, checkpoint__every_minutes=0.02)
    job = Training(write_config(tmp_path / "config.toml", tree), tmp_path / "out")
    job.wait_until(lambda: len(committed(job.out)) >= 2)
    job.kill()


def test_an_uncommitted_checkpoint_is_deleted_by_the_next_job(file, tmp_path):
    job = Training(file, tmp_path / "out", ranks=0)
    job.end()
    leftover = job.out / "checkpoints/step-000000099"
    leftover.mkdir()
    (leftover / "__0_0.distcp").write_bytes(b"half")
    assert (
        "checkpoint step-000000099 was never committed; its files are deleted"
        in Training(file, job.out, "--train.steps", "32", ranks=0).end()
    )
    assert not leftover.exists()


def test_a_rank_that_ends_during_a_save_commits_nothing(tmp_path):
    """DCP saves the tensors of a rank outside of its group as if it were the only one, without an error."""

    class LeavingAtTheBeginning(Checkpoints):
        def begin(self, step):
            super().begin(step)
            dist.destroy_process_group()

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    lines, checkpoints = [], LeavingAtTheBeginning(RunDirectory(str(tmp_path / "out")))
    arguments = CheckpointConfig(), current_context(), 0, lines.append, list, lambda: None, Staging()
    saver = Saver(checkpoints, *arguments)
    saver.save(5, {"model.weight": torch.ones(3)}, {}, {})
    saver.close()
    assert saver.saved_step == 0
    assert [*checkpoints.steps()] == []
    assert [line.partition(":")[0] for line in lines] == ["step 5  NOT SAVED"]


@pytest.mark.more("waits; test_object_store.py refuses a second job")
def test_a_second_job_is_refused_until_the_first_is_dead(file, tmp_path, baseline):
    first = Training(file, tmp_path / "out", *FOR_EVER, ranks=0)
    first.wait_until(lambda: committed(first.out))
    second = Training(file, first.out, ranks=0)
    output = second.end().splitlines()
    assert f"error: --out is '{first.out}', which process {first.process.pid} on " in output[-1]
    assert "is writing to; wait for it, stop it or choose another --out" in output[-1]
    assert second.code == 2
    os.kill(first.process.pid, signal.SIGKILL)
    first.end()
    last = committed(first.out)[-1]
    third = Training(file, first.out, *FOR_EVER, "--train.steps", str(last + 10), ranks=0)
    assert f"resumed after step {last:,} " in third.end()
    assert third.code == 0
    assert losses(first.out)[:STEPS] == baseline[: last + 10]
    assert not (first.out / "lock.json").exists()


@pytest.mark.more("waits half a minute")
def test_a_stale_lock_is_taken_over(file, tmp_path):
    (tmp_path / "out").mkdir()
    holder = {"token": "x", "job": None, "host": "elsewhere", "pids": "", "pid": 7, "started": "1", "renewed": 0}
    (tmp_path / "out/lock.json").write_text(json.dumps(holder))
    started = time.monotonic()
    job = Training(file, tmp_path / "out", ranks=0)
    assert "is locked by process 7 on elsewhere; waiting to see whether it is alive" in job.end()
    assert job.code == 0
    assert time.monotonic() - started >= STALE_SECONDS


@pytest.mark.more("a detail")
def test_the_same_torchx_job_does_not_wait_for_itself(file, tmp_path):
    (tmp_path / "out").mkdir()
    holder = {"token": "x", "job": "slurm://a/7", "host": "elsewhere", "pids": "", "pid": 7, "started": "1"}
    (tmp_path / "out/lock.json").write_text(json.dumps(holder))
    job = Training(file, tmp_path / "out", ranks=0, TORCHX_JOB_ID="slurm://a/7")
    assert "waiting" not in job.end()
    assert job.code == 0


@pytest.mark.more("a rare fault")
def test_a_job_whose_directory_was_taken_over_ends(file, tmp_path):
    job = Training(file, tmp_path / "out", *FOR_EVER, "--checkpoint.every-steps", "0", ranks=0)
    job.after_steps(2)
    holder = json.loads((job.out / "lock.json").read_text()) | {"token": "another", "pid": 7, "host": "elsewhere"}
    (job.out / "lock.json").write_text(json.dumps(holder))
    output = job.end()
    assert f"error: {job.out} was taken over by process 7 on elsewhere; this job ends" in output
    assert job.code == 1


@pytest.fixture
def small_disk(tmp_path):
    """A mounted file system of 8 MiB."""
    with mounted_disk(tmp_path, 8) as disk:
        yield disk


@pytest.mark.parametrize("room", [0, 100_000])
def test_a_disk_that_is_full_in_the_middle_of_a_tensor_is_said_to_be_full(room, small_disk):
    url = small_disk / "checkpoint"
    url.mkdir()
    fill(small_disk, but=room)
    with pytest.raises(CheckpointException) as failed:
        dcp.save({"table": torch.zeros(5000, 16)}, storage_writer=ChecksumWriter(str(url)), no_dist=True)
    error = pickle.loads(pickle.dumps(failed.value.failures[0][0]))  # as another rank gets it
    assert str(error) == f"[Errno 28] No space left on device: '{url}/__0_0.distcp'"
    assert SaveFailed(error).permanent


def test_a_full_disk_loses_checkpoints_but_no_step(file, small_disk, baseline):
    flags = [*FOR_EVER, "--checkpoint.keep.newest", "2"]
    job = Training(file, small_disk / "out", *flags, ranks=0)
    job.wait_until(lambda: committed(job.out))
    fill(small_disk)
    before = job.steps()
    job.wait_until(lambda: "NOT SAVED: " in job.output())
    (small_disk / "filler").unlink()
    job.wait_until(lambda: committed(job.out)[-1] >= max(before + 20, STEPS))
    output = job.signal(signal.SIGTERM).end()
    assert "NOT SAVED: " in output
    assert "No space left on device" in output
    assert job.code == 75
    assert losses(job.out)[:STEPS] == baseline  # every step is there once, those of the time without space too


def test_a_stop_on_a_full_disk_says_which_steps_are_lost(rows, small_disk):
    tree = config(rows, model__name="custom:unhurried", train__steps=1_000_000, checkpoint__every_steps=5)
    job = Training(write_config(small_disk / "config.toml", tree), small_disk / "out", ranks=0)
    job.wait_until(lambda: committed(job.out))
    fill(small_disk, but=20_000)
    before = job.steps()
    job.after_steps(before + 12)
    output = job.signal(signal.SIGTERM).end()
    last, stopped = committed(job.out)[-1], job.steps()
    not_saved = [line for line in output.splitlines() if "NOT SAVED" in line]
    assert not_saved
    assert all("[Errno 28] No space left on device: '" in line for line in not_saved)
    said = f"stopped at step {stopped}, steps {last + 1} to {stopped} are lost: the newest checkpoint saved is "
    assert f"{said}{job.out}/checkpoints/step-{last:09d}" in output
    assert job.outcome().startswith(said)
    assert saved_step(job.outcome().strip()) == last
    assert job.code == 75


def test_a_failed_last_save_is_an_error_and_can_be_resumed(file, small_disk, tmp_path, baseline):
    gate = Gate(tmp_path / "gate", STEPS // 2)
    job = Training(file, small_disk / "out", ranks=0, **gate.environment)
    job.wait_until(lambda: committed(job.out))
    job.signal(signal.SIGSTOP)
    fill(small_disk)
    gate.open()
    output = job.signal(signal.SIGCONT).end()
    last = committed(job.out)[-1]
    lost = f"step {STEPS} is lost" if last == STEPS - 1 else f"steps {last + 1} to {STEPS} are lost"
    said = (
        f"error: the last step could not be saved; {lost}: the newest checkpoint saved is {job.out}/checkpoints/step-"
    )
    assert f"{said}{last:09d}; the same command resumes it" in output
    assert "Traceback" not in output
    assert job.code == 1
    (small_disk / "filler").unlink()
    again = Training(file, job.out, ranks=0)
    assert f"resumed after step {last} " in again.end()
    assert losses(job.out) == baseline
    assert committed(job.out)[-1] == STEPS


def test_a_read_only_disk_loses_checkpoints_but_no_step(file, small_disk):
    job = Training(file, small_disk / "out", *FOR_EVER, ranks=0)
    job.wait_until(lambda: committed(job.out))
    # The disk is busy while a file on it is open for writing.
    job.wait_until(lambda: subprocess.run(["mount", "-o", "remount,ro", small_disk]).returncode == 0)
    job.wait_until(lambda: "NOT SAVED: " in job.output())
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    now = committed(job.out)[-1]
    job.wait_until(lambda: committed(job.out)[-1] > now)
    output = job.signal(signal.SIGTERM).end()
    assert "NOT SAVED: " in output
    assert "Read-only file system" in output
    assert job.code == 75
