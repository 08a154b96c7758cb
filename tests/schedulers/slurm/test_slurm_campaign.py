"""A campaign of random faults on a real Slurm: jobs end in the right state, with the right losses, within their bounds.

Ten jobs, three at a time, meet six or more faults each, which takes half an hour: `make test-all` does it.
"""

import json
import os
import random
import re
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
from command import write_config
from jobs import config, losses, saved_tensors
from slurm_cluster import Cluster, missing
from slurm_shell import Shell, number
from trainer_process import committed, is_rank

pytestmark = [pytest.mark.slurm, pytest.mark.sample(0)]  # for half an hour

SAVE_EVERY = 20
JOBS = 10
STEPS = 3000  # enough for the faults of a job to come before its end
DISK_BYTES = 300 * 2**20


class Campaign:
    """A cluster with a small disk, and the faults that its jobs meet."""

    def __init__(self, shell: Shell) -> None:
        self.shell, self.cluster = shell, shell.cluster
        self.injected: list[str] = []
        # One at a time of those that hit the whole cluster: two absent controllers are one.
        self.whole_cluster = threading.Lock()

    def submit(self, name: str, retries: int) -> str:
        job = ("dlrm.multi_node", "--config", "small.toml", "-j", "2x1", "--cpu", "1", "--memMB", "2000", "--out", name)
        bad_nodes = self.shell.folder / f"bad-nodes-{name}"
        bad_nodes.touch()
        return self.shell.submit(
            *job, "--max_retries", str(retries), "--env", f"BAD_NODES={bad_nodes}", cfg="signal_lead=60"
        )


class Job:
    """A training job that meets one fault after the other."""

    def __init__(self, campaign: Campaign, name: str, seed: int, faults: list[tuple["Fault", ...]]) -> None:
        self.campaign, self.shell, self.name, self.faults = campaign, campaign.shell, name, faults
        self.random = random.Random(seed)
        self.out = self.shell.folder / name
        self.retries = sum(RETRIES[fault] for group in faults for fault in group)
        self.handle = campaign.submit(name, self.retries)
        self.seen = 0
        self.before = len(campaign.injected)

    def run(self) -> "Job":
        for group in self.faults:
            self.wait_for_progress()
            with ThreadPoolExecutor(len(group)) as pool:
                for done in [pool.submit(fault, self) for fault in group]:
                    done.result()
            self.campaign.injected += [fault.__name__ for fault in group]
        self.status = self.shell.wait(self.handle, seconds=900)
        return self

    def wait_for_progress(self) -> None:
        """Waits for a checkpoint that is newer than that of the last fault."""
        deadline = time.monotonic() + 600
        while not committed(self.out) or committed(self.out)[-1] <= self.seen:
            assert time.monotonic() < deadline, self.story()
            time.sleep(0.2)
        self.seen = committed(self.out)[-1]
        assert self.seen < STEPS, f"{self.name} ended before all of its faults"

    def ranks(self) -> list[psutil.Process]:
        """The processes of its ranks on this machine."""
        named = [each for each in psutil.process_iter(["cmdline"]) if self.name in (each.info["cmdline"] or [])]
        with suppress(psutil.NoSuchProcess):  # one may end while it is looked at
            return [each for each in named if is_rank(each)]
        return []

    def a_rank_and_its_node(self) -> tuple[psutil.Process, str]:
        while True:
            rank = self.a_rank()
            with suppress(psutil.Error):  # it may end while it is looked at
                return rank, rank.environ()["SLURMD_NODENAME"]

    def a_rank(self) -> psutil.Process:
        while not (found := self.ranks()):
            time.sleep(0.1)
        return self.random.choice(found)

    def scontrol(self, *words: str, check: bool = True) -> None:
        self.shell.cluster.run("scontrol", *words, check=check)

    def story(self) -> str:
        return f"{self.name}: {self.faults}\n{self.shell.batch_log(self.handle)}"


Fault = Callable[[Job], None]


def rank_killed(job: Job) -> None:
    with suppress(psutil.NoSuchProcess):
        job.a_rank().kill()


def warned(job: Job) -> None:
    job.shell.cluster.run("scancel", "--signal=USR1", "--batch", number(job.handle), check=False)


def preempted(job: Job) -> None:
    with job.campaign.whole_cluster:
        urgent = job.shell.shell_job("true", "--num_replicas", "3", cfg="partition=high,exclusive=True")
        assert job.shell.wait(urgent, seconds=300)["state"] == "SUCCEEDED"


def node_lost(job: Job) -> None:
    _, node = job.a_rank_and_its_node()
    with job.campaign.whole_cluster:
        job.shell.cluster.cut_power(node)
        time.sleep(5 * job.random.random())
        job.shell.cluster.start_node(node)


def controller_down(job: Job) -> None:
    with job.campaign.whole_cluster, job.shell.cluster.controller_away():
        time.sleep(8 * job.random.random())


def disk_full(job: Job) -> None:
    with job.campaign.whole_cluster:
        file = job.shell.folder / "filler"
        with suppress(OSError), file.open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(2**16))
        time.sleep(4 * job.random.random())
        file.unlink()


def time_limit(job: Job) -> None:
    # Nobody can be warned on a node whose loss the controller has not noticed yet; Slurm does not requeue a time-out.
    job.seen = committed(job.out)[-1]
    job.wait_for_progress()
    requests = job.shell.batch_log(job.handle).count("stop requested")
    minutes = re.match(
        r"(?:(\d+):)?(\d+):", job.shell.cluster.run("squeue", "-h", "-j", number(job.handle), "-o", "%M")
    )
    # Limits are in minutes, and the warning comes one before: at the next full one there would be none.
    job.scontrol("update", f"JobId={number(job.handle)}", f"TimeLimit={int(minutes[2]) + 2 if minutes else 2}")
    deadline = time.monotonic() + 180
    while job.shell.batch_log(job.handle).count("stop requested") == requests:
        assert time.monotonic() < deadline, job.story()
        time.sleep(0.5)
    # Of a job that has ended meanwhile this fails; its state tells whether it may have.
    job.scontrol("update", f"JobId={number(job.handle)}", "TimeLimit=UNLIMITED", check=False)


def bad_node(job: Job) -> None:
    """Ranks fail on a node from now on, until Slurm leaves it out."""
    file = job.shell.folder / f"bad-nodes-{job.name}"
    with job.campaign.whole_cluster:
        rank, node = job.a_rank_and_its_node()
        file.write_text(node)
        with suppress(psutil.NoSuchProcess):
            rank.kill()
        deadline = time.monotonic() + 300
        while "excluding" not in job.shell.batch_log(job.handle):
            assert time.monotonic() < deadline, job.story()
            time.sleep(0.5)
        file.write_text("")


def cancelled(job: Job) -> None:
    """Ends the job, which is then submitted once more and goes on."""
    job.shell.torchx("cancel", job.handle)
    status = job.shell.wait(job.handle)
    assert status["state"] == "CANCELLED", job.story()
    job.seen = committed(job.out)[-1]  # the next fault is for a job that has begun
    job.handle = job.campaign.submit(job.name, job.retries)


RETRIES = Counter({rank_killed: 1, bad_node: 2})
SINGLE = [rank_killed, warned, preempted, node_lost, controller_down, disk_full]
AT_ONCE = [(controller_down, warned), (node_lost, warned), (node_lost, rank_killed), (controller_down, rank_killed)]
ONCE_A_JOB = [cancelled, time_limit, bad_node]


def plan(seed: int) -> list[tuple[Fault, ...]]:
    """Returns the faults of one job, in groups that come at once."""
    chance = random.Random(seed)
    singles = [(fault,) for fault in chance.sample(SINGLE, 4)]
    groups = [*singles, chance.choice(AT_ONCE), (ONCE_A_JOB[seed % len(ONCE_A_JOB)],)]
    chance.shuffle(groups)
    return groups


@pytest.fixture(scope="module")
def campaign(rows):
    if lacking := missing(dbd=True):
        pytest.skip(lacking)
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        work = Path(folder, "work")
        work.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", work], check=True)
        try:
            prefix = os.environ.get("SLURM_PREFIX")
            cluster_folder = Path(folder, "c")
            cluster_folder.mkdir()
            with Cluster(cluster_folder, dbd=True, prefix=Path(prefix) if prefix else None) as cluster:
                tree = config(rows, model__name="custom:unhurried_on_good_nodes", train__steps=STEPS)
                tree["checkpoint"] = {"every_steps": SAVE_EVERY}
                write_config(work / "small.toml", tree)
                yield Campaign(Shell(cluster, work))
        finally:
            subprocess.run(["umount", "--lazy", work], check=True)


def test_jobs_end_as_if_nothing_had_happened(campaign):
    shell = campaign.shell
    undisturbed = campaign.submit("undisturbed", 0)
    assert shell.wait(undisturbed)["state"] == "SUCCEEDED", shell.batch_log(undisturbed)
    with ThreadPoolExecutor(3) as pool:
        running = [pool.submit(lambda n=n: Job(campaign, f"job-{n}", n, plan(n)).run()) for n in range(JOBS)]
    print(Counter(campaign.injected))
    errors = []
    for job in running:  # all of them are judged, as a campaign takes long
        try:
            judge(job.result(), shell.folder / "undisturbed")
        except Exception as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} of {JOBS} jobs", errors)
    assert len(campaign.injected) >= 60


def judge(job: Job, undisturbed: Path) -> None:
    """Asserts that a job ended in the right state, with the right losses, within its bounds."""
    assert job.status["state"] == "SUCCEEDED", job.story()
    assert job.status["num_restarts"] <= len(job.campaign.injected) - job.before + job.retries, job.story()
    failures = job.shell.job_dir(job.handle) / f"slurm-{number(job.handle)}/failures"
    assert (len(failures.read_text().splitlines()) if failures.exists() else 0) <= job.retries, job.story()
    assert losses(job.out) == losses(undisturbed)
    expected, found = saved_tensors(undisturbed, STEPS), saved_tensors(job.out, STEPS)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert json.loads((job.out / "run.json").read_text())["state"] == "finished"
