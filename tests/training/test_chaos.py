"""Fault injection: jobs that are interrupted again and again, at random moments, end as if undisturbed.

By default each moment comes once under torchrun and once without, each time with another fault; `--all` takes every
pair. There is a table for each table optimizer, and torchrun's jobs train in microbatches.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from command import write_config
from jobs import config, losses, write_rows
from row_recorder import RowLog
from trainer_process import Training, committed, is_running

from torchx_recsys.apps.runs.saved_tensors import read_tensors

ROWS, BATCH = 1280, 64  # 20 steps an epoch
SAVE_EVERY, EVALUATE_EVERY = 4, 10
MICRO_BATCHES = {2: 2, 0: 1}  # by ranks
TABLE_OPTIMIZERS = {
    "s0": {"name": "sgd", "learning_rate": 0.5},
    "s1": {"name": "adagrad", "initial_accumulator": 0.1},
    "s2": {"name": "rowwise_adagrad", "weight_decay": 0.01, "weight_decay_mode": "l2"},
    "s3": {"name": "adam", "learning_rate": 0.01, "weight_decay": 0.01},
    "s4": {"name": "lamb", "learning_rate": 0.01},
    "s5": {"name": "lars_sgd", "learning_rate": 1.0},
    "s6": {"name": "partial_rowwise_adam", "learning_rate": 0.01},
    "s7": {"name": "partial_rowwise_lamb", "learning_rate": 0.01},
}
PATIENCE = 12  # steps that a moment may take to come; so many for every fault of a run are fewer than its steps
POLL_SECONDS = 0.005


class FaultyRun:
    """A run whose job is interrupted and started again until it is done.

    Attributes:
        out: Its run directory.
        steps: How many it takes.
        log: The samples that it was trained on.
        interruptions: How often it was interrupted while it ran.
        met: How often a fault came at its moment.
    """

    def __init__(self, start: Callable[[Path], Training], out: Path, steps: int, seed: int) -> None:
        self.out, self.steps, self.log = out, steps, RowLog(out)
        self.interruptions, self.met = 0, Counter[Moment]()
        self._start, self._random = start, random.Random(seed)
        self._job: Training | None = None
        self._earlier_starts = 0
        self._targets: list[int] = []

    def finish(self, faults: list["Fault"]) -> "FaultyRun":
        """Injects a fault after each start, and then trains to the end."""
        for moment, inject in faults:
            if not self._starts():
                break
            is_met = self._await(moment)
            if self._is_running() and not self._is_finished():
                with suppress(psutil.NoSuchProcess, ProcessLookupError):  # it ends just now
                    self._targets = self.job.workers() or [self.job.process.pid]
                    inject(self.job, self._random.choice(self._targets))
                    self.interruptions += 1
                    self.met[moment] += is_met
        while self._starts():
            self.job.end()
        return self

    @property
    def job(self) -> Training:
        """The job that runs, or ran last."""
        assert self._job
        return self._job

    def has_restored(self) -> bool:
        """Returns whether the last start has its state."""
        return self.job.output().count("; watch: torchx run") == self.log.starts - self._earlier_starts

    def _starts(self) -> bool:
        """Waits until the job was started, by torchrun or else by us, and builds its model; False once it is done."""
        starts, deadline = self.log.starts, time.monotonic() + 600
        while self.log.follow().starts == starts:
            if self._job is None or not self._is_running():
                wait_for_exit(self._targets)  # ranks outlive torchrun for as long as they take to save
                if self._is_finished():
                    return False
                assert self._job is None or self._targets, self.job.output()  # only a fault ends it
                self._outcome.unlink(missing_ok=True)
                self._job, self._earlier_starts, self._targets = self._start(self.out), starts, []
            assert time.monotonic() < deadline, self.job.output()
            time.sleep(POLL_SECONDS)
        assert self.log.starts == starts + 1, self.job.output()
        self._targets = []
        return True

    def _await(self, moment: "Moment") -> bool:
        """Returns once the moment has come, or has not for too many steps, and whether it has."""
        while self._is_running() and not moment.is_now(self) and self.log.step < self.log.first + moment.patience:
            time.sleep(POLL_SECONDS)
            self.log.follow()
        time.sleep(self._random.random() * moment.spread_seconds)
        self.log.follow()
        return moment.is_now(self)

    def _is_running(self) -> bool:
        return self.job.process.poll() is None

    @property
    def _outcome(self) -> Path:
        return Path(f"{self.out}-outcome")

    def _is_finished(self) -> bool:
        return text_of(self._outcome).startswith("finished")


def wait_for_exit(processes: list[int]) -> None:
    deadline = time.monotonic() + 600
    while any(is_running(pid) for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@dataclass(frozen=True)
class Moment:
    """When to interrupt: as soon as `is_now`, or up to `spread_seconds` later."""

    is_now: Callable[[FaultyRun], bool]
    spread_seconds: float = 0.0
    patience: int = PATIENCE


def is_restoring(run: FaultyRun) -> bool:
    return run.log.first > 0 and not run.has_restored()


def is_at_the_first_step(run: FaultyRun) -> bool:
    return run.log.step == run.log.first + 1


def is_training(run: FaultyRun) -> bool:
    return run.log.step > run.log.first


def is_between_micro_batches(run: FaultyRun) -> bool:
    return is_training(run) and len(run.log.rows[run.log.step]) < BATCH


def is_saving(run: FaultyRun) -> bool:
    folders = (run.out / "checkpoints").glob("step-*")
    return is_training(run) and any(not (folder / "manifest.json").exists() for folder in folders)


def is_evaluating(run: FaultyRun) -> bool:
    line = f'"step": {run.log.step},'
    return (
        is_training(run)
        and run.log.step % EVALUATE_EVERY == 0
        and line in text_of(run.out / "metrics.jsonl")
        and line not in text_of(run.out / "evaluations.jsonl")
    )


def is_in_the_last_step(run: FaultyRun) -> bool:
    return run.log.step == run.steps


def kill_a_worker(job: Training, worker: int) -> None:
    os.kill(worker, signal.SIGKILL)


def stop_a_worker(job: Training, worker: int) -> None:
    os.kill(worker, signal.SIGTERM)


def warn_a_worker(job: Training, worker: int) -> None:
    os.kill(worker, signal.SIGUSR1)


def kill_the_agent(job: Training, worker: int) -> None:
    job.process.kill()


def stop_the_agent(job: Training, worker: int) -> None:
    job.signal(signal.SIGTERM)


def kill_the_job(job: Training, worker: int) -> None:
    job.kill()


AT_THE_END = Moment(is_in_the_last_step, 0.4, sys.maxsize)
MOMENTS = [
    Moment(is_restoring, 0.05),
    Moment(is_at_the_first_step),
    Moment(is_training, 0.5),
    Moment(is_saving, 0.1),
    Moment(is_evaluating, 0.2),
]
IN_A_STEP = Moment(is_between_micro_batches)
# Runs that are interrupted, and their ranks. One cannot have every fault under torchrun in its steps.
MATRIX = "name, ranks", lambda whole: [*([("first", 2), ("second", 2)] if whole else [("first", 2)]), ("third", 0)]
Injection = Callable[[Training, int], None]
Fault = tuple[Moment, Injection]
UNDER_TORCHRUN = [kill_a_worker, stop_a_worker, kill_the_agent, stop_the_agent, kill_the_job]
ALONE = [kill_a_worker, stop_a_worker, warn_a_worker]


def faults_of(moments: list[Moment], injections: list[Injection], seed: int, at_each_moment: int) -> list[Fault]:
    """Returns so many injections at every moment, taken in turn, in random order."""
    faults = [
        (moment, injections[(first + n) % len(injections)])
        for first, moment in enumerate(moments)
        for n in range(at_each_moment)
    ]
    random.Random(seed).shuffle(faults)
    return faults


@pytest.fixture(scope="module")
def steps(request):
    """How many steps all runs take, for as many faults as are injected into one of them."""
    return 200 if request.config.getoption("all") else 120


@pytest.fixture(scope="module")
def start(steps, tmp_path_factory):
    """Starts a job with evaluations, on slow storage."""
    folder = tmp_path_factory.mktemp("chaos")
    tables = len(TABLE_OPTIMIZERS)
    rows = write_rows(folder / "data", [700, 580], sparse_features=tables)
    validation = write_rows(folder / "validation", [200], seed=1, sparse_features=tables)
    tree = config(rows, train__steps=steps, data__validation=[str(validation)], optimizer__tables=TABLE_OPTIMIZERS)
    tree["data"]["dense"]["row_id"] = {}
    tree["data"]["sparse"] = {name: {"rows": 110} for name in TABLE_OPTIMIZERS}
    tree["evaluate"] = {"every_steps": EVALUATE_EVERY}
    tree["checkpoint"] = {"every_steps": SAVE_EVERY, "full_every": 3}
    tree["optimizer"]["sparse"] = {"name": "rowwise_adagrad", "learning_rate": 0.05}
    tree["optimizer"]["dense"] = {"name": "adamw", "learning_rate": 0.01}
    tree["model"]["name"] = "row_recorder:build"
    files = {}
    for ranks, parts in MICRO_BATCHES.items():
        tree["train"]["micro_batches"] = parts
        tree["model"]["arguments"] = {"micro_batches": parts}
        files[ranks] = write_config(folder / f"config-{ranks}.toml", tree)

    def start(out: Path, ranks: int) -> Training:
        return Training(
            files[ranks],
            f"slow://{out}",
            ranks=ranks,
            restarts=100,
            RECORDED_RUN=str(out),
            TORCHX_OUTCOME_FILE=f"{out}-outcome",
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # as our components start torchrun
        )

    return start


@pytest.fixture(scope="module")
def faults(request, matrix):
    """The faults to inject into each run, by its name and its number of ranks; the baselines have none."""
    whole = request.config.getoption("all")
    under_torchrun = faults_of(
        [*MOMENTS, IN_A_STEP], UNDER_TORCHRUN, seed=1, at_each_moment=len(UNDER_TORCHRUN) if whole else 1
    )
    alone = faults_of(MOMENTS, ALONE, seed=2, at_each_moment=len(ALONE) if whole else 1)
    under_torchrun += [(AT_THE_END, kill_the_agent), (AT_THE_END, kill_a_worker)]
    alone += [(AT_THE_END, kill_a_worker)]
    runs_under_torchrun = [key for key in matrix if key[1]]
    shared_out = {key: under_torchrun[at :: len(runs_under_torchrun)] for at, key in enumerate(runs_under_torchrun)}
    return {("baseline", 2): [], ("baseline", 0): [], **shared_out, ("third", 0): alone}


@pytest.fixture(scope="module")
def runs(start, faults, steps, tmp_path_factory):
    """The finished runs, by name and number of ranks."""
    folder = tmp_path_factory.mktemp("chaos-runs")
    with ThreadPoolExecutor(3) as pool:
        running = {
            (name, ranks): pool.submit(
                FaultyRun(lambda out, ranks=ranks: start(out, ranks), folder / f"{name}-{ranks}", steps, seed).finish,
                planned,
            )
            for seed, ((name, ranks), planned) in enumerate(faults.items())
        }
    return {key: run.result() for key, run in running.items()}


def test_most_faults_came_at_their_moments(runs, faults, matrix):
    planned = Counter(moment for key in matrix for moment, _ in faults[key])
    assert sum(runs[key].interruptions for key in matrix) >= planned.total() * 7 // 8
    met = sum((runs[key].met for key in matrix), Counter())
    assert met[AT_THE_END]
    for moment in (*MOMENTS, IN_A_STEP):
        assert met[moment] >= planned[moment] // 2, (moment, met)


def test_an_interrupted_run_ends_bit_for_bit_as_its_baseline(runs, steps, name, ranks):
    baseline, interrupted = runs["baseline", ranks].out, runs[name, ranks].out
    assert committed(interrupted)[-1] == steps
    assert losses(interrupted) == losses(baseline)
    np.testing.assert_equal(evaluations(interrupted), evaluations(baseline))
    expected, found = (read_tensors(f"{out}/checkpoints/step-{steps:09d}") for out in (baseline, interrupted))
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        assert torch.equal(found[tensor], value), tensor


def test_every_sample_is_trained_once_in_every_epoch(runs, steps, name, ranks):
    rows, per_epoch = runs[name, ranks].log.rows, ROWS // BATCH
    assert sorted(rows) == list(range(1, steps + 1))
    for first in range(1, steps + 1, per_epoch):
        assert sorted(row for step in range(first, first + per_epoch) for row in rows[step]) == list(range(ROWS))


def evaluations(out: Path) -> list[dict]:
    return [json.loads(line) for line in text_of(out / "evaluations.jsonl").splitlines()]
