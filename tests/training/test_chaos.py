"""Jobs that are struck again and again, at random moments, end as if nothing had happened."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from command import write_config
from jobs import config, losses, saved_tensors, write_rows
from row_recorder import RowLog
from slow_storage import install
from trainer_process import Training, committed, is_running

ROWS, BATCH, STEPS = 1280, 64, 200  # 20 steps an epoch
SAVE_EVERY, EVALUATE_EVERY = 4, 10
PATIENCE = 12  # steps that a moment may take to come; so many for every blow are fewer than STEPS
POLL_SECONDS = 0.005


class Ordeal:
    """A job that is struck and started again until it is done.

    Attributes:
        out: Its run directory.
        log: What it was trained on.
        struck: How often it was struck while it ran.
        met: How often the moment was the one that was meant.
    """

    def __init__(self, start: Callable[[Path], Training], out: Path, seed: int) -> None:
        self.out, self.log = out, RowLog(out)
        self.struck, self.met = 0, Counter[Moment]()
        self._start, self._random = start, random.Random(seed)
        self._job: Training | None = None
        self._earlier_starts = 0
        self._victims: list[int] = []

    def endure(self, blows: list["Blow"]) -> "Ordeal":
        """Takes a blow after each start, and then goes on to the end."""
        for moment, strike in blows:
            if not self._starts():
                break
            is_met = self._await(moment)
            if self._is_running() and not self._is_finished():
                self._victims = self.job.workers() or [self.job.process.pid]
                strike(self.job, self._random.choice(self._victims))
                self.struck += 1
                self.met[moment] += is_met
        while self._starts():
            self.job.end()
        return self

    @property
    def job(self) -> Training:
        """What runs, or ran last."""
        assert self._job
        return self._job

    def has_restored(self) -> bool:
        """Tells whether the last start has its state."""
        return self.job.said().count("; watch: torchx run") == self.log.starts - self._earlier_starts

    def _starts(self) -> bool:
        """Waits until the job was started, by torchrun or else by us, and builds its model; False once it is done."""
        starts, deadline = self.log.starts, time.monotonic() + 120
        while self.log.follow().starts == starts:
            if self._job is None or not self._is_running():
                wait_for_the_end_of(self._victims)  # ranks outlive torchrun for as long as they take to save
                if self._is_finished():
                    return False
                assert self._job is None or self._victims, self.job.said()  # only a blow ends it
                self._outcome.unlink(missing_ok=True)
                self._job, self._earlier_starts, self._victims = self._start(self.out), starts, []
            assert time.monotonic() < deadline, self.job.said()
            time.sleep(POLL_SECONDS)
        assert self.log.starts == starts + 1, self.job.said()
        self._victims = []
        return True

    def _await(self, moment: "Moment") -> bool:
        """Returns when the moment has come, or for too many steps has not, and tells which."""
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


def wait_for_the_end_of(processes: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(is_running(pid) for pid in processes):
        assert time.monotonic() < deadline
        time.sleep(POLL_SECONDS)


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@dataclass(frozen=True)
class Moment:
    """When to strike: as soon as `is_now`, or up to `spread_seconds` later."""

    is_now: Callable[[Ordeal], bool]
    spread_seconds: float = 0.0
    patience: int = PATIENCE


def is_restoring(ordeal: Ordeal) -> bool:
    return ordeal.log.first > 0 and not ordeal.has_restored()


def is_at_the_first_step(ordeal: Ordeal) -> bool:
    return ordeal.log.step == ordeal.log.first + 1


def is_training(ordeal: Ordeal) -> bool:
    return ordeal.log.step > ordeal.log.first


def is_saving(ordeal: Ordeal) -> bool:
    folders = (ordeal.out / "checkpoints").glob("step-*")
    return is_training(ordeal) and any(not (folder / "manifest.json").exists() for folder in folders)


def is_evaluating(ordeal: Ordeal) -> bool:
    line = f'"step": {ordeal.log.step},'
    return (
        is_training(ordeal)
        and ordeal.log.step % EVALUATE_EVERY == 0
        and line in text_of(ordeal.out / "metrics.jsonl")
        and line not in text_of(ordeal.out / "evaluations.jsonl")
    )


def is_in_the_last_step(ordeal: Ordeal) -> bool:
    return ordeal.log.step == STEPS


def kill_a_worker(job: Training, worker: int) -> None:
    os.kill(worker, signal.SIGKILL)


def ask_a_worker(job: Training, worker: int) -> None:
    os.kill(worker, signal.SIGTERM)


def warn_a_worker(job: Training, worker: int) -> None:
    os.kill(worker, signal.SIGUSR1)


def kill_the_agent(job: Training, worker: int) -> None:
    job.process.kill()


def ask_the_agent(job: Training, worker: int) -> None:
    job.signal(signal.SIGTERM)


def kill_the_job(job: Training, worker: int) -> None:
    job.kill()


AT_THE_END = Moment(is_in_the_last_step, 0.4, STEPS)
MOMENTS = [
    Moment(is_restoring, 0.25),
    Moment(is_at_the_first_step),
    Moment(is_training, 0.5),
    Moment(is_saving, 0.1),
    Moment(is_evaluating, 0.2),
]
Strike = Callable[[Training, int], None]
Blow = tuple[Moment, Strike]
UNDER_TORCHRUN = [kill_a_worker, ask_a_worker, kill_the_agent, ask_the_agent, kill_the_job]
ALONE = [kill_a_worker, ask_a_worker, warn_a_worker]


def every(strikes: list[Strike], seed: int) -> list[Blow]:
    """Returns every strike at every moment, in random order."""
    blows = list(product(MOMENTS, strikes))
    random.Random(seed).shuffle(blows)
    return blows


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Starts a job with evaluations, on a disk that takes its time."""
    folder = tmp_path_factory.mktemp("chaos")
    rows = write_rows(folder / "data", [700, 580])
    validation = write_rows(folder / "validation", [200], seed=1)
    tree = config(rows, train__steps=STEPS, data__validation=[str(validation)])
    tree["data"]["dense"]["row_id"] = {}
    tree["evaluate"] = {"every_steps": EVALUATE_EVERY}
    tree["checkpoint"] = {"every_steps": SAVE_EVERY}
    tree["optimizer"]["sparse"] = {"name": "rowwise_adagrad", "learning_rate": 0.05}
    tree["optimizer"]["dense"] = {"name": "adamw", "learning_rate": 0.01}
    tree["model"]["name"] = "row_recorder:build"
    file = write_config(folder / "config.toml", tree)
    path = f"{Path(__file__).parents[1] / 'support'}:{install(folder / 'path')}"

    def start(out: Path, ranks: int) -> Training:
        return Training(
            file,
            f"slow://{out}",
            ranks=ranks,
            restarts=100,
            PYTHONPATH=path,
            RECORDED_RUN=str(out),
            TORCHX_OUTCOME_FILE=f"{out}-outcome",
            TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # as our components start torchrun
        )

    return start


@pytest.fixture(scope="module")
def ordeals(start, tmp_path_factory):
    """By name: runs that nothing disturbs, and runs that are struck; the number in a name is that of ranks."""
    folder = tmp_path_factory.mktemp("ordeals")
    pairs, alone = every(UNDER_TORCHRUN, seed=1), every(ALONE, seed=2)
    plans = {
        ("straight", 2): [],
        ("straight", 0): [],
        ("first", 2): [*pairs[:13], (AT_THE_END, kill_the_agent)],
        ("second", 2): [*pairs[13:], (AT_THE_END, kill_a_worker)],
        ("third", 0): [*alone, (AT_THE_END, kill_a_worker)],
    }
    with ThreadPoolExecutor(3) as pool:
        running = {
            (name, ranks): pool.submit(
                Ordeal(lambda out, ranks=ranks: start(out, ranks), folder / f"{name}-{ranks}", seed).endure, blows
            )
            for seed, ((name, ranks), blows) in enumerate(plans.items())
        }
    return {key: ordeal.result() for key, ordeal in running.items()}


STRUCK = [("first", 2), ("second", 2), ("third", 0)]


def test_enough_was_done_to_them_at_the_moments_that_were_meant(ordeals):
    assert sum(ordeals[key].struck for key in STRUCK) >= 40
    met = sum((ordeals[key].met for key in STRUCK), Counter())
    assert met[AT_THE_END]
    for moment in MOMENTS:
        assert met[moment] >= 4, (moment, met)


@pytest.mark.parametrize(("name", "ranks"), STRUCK)
def test_it_ends_bit_for_bit_as_if_nothing_had_happened(ordeals, name, ranks):
    straight, struck = ordeals["straight", ranks].out, ordeals[name, ranks].out
    assert committed(struck)[-1] == STEPS
    assert losses(struck) == losses(straight)
    np.testing.assert_equal(evaluations(struck), evaluations(straight))
    expected, found = saved_tensors(straight, STEPS), saved_tensors(struck, STEPS)
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        assert torch.equal(found[tensor], value), tensor


@pytest.mark.parametrize(("name", "ranks"), STRUCK)
def test_every_row_is_trained_once_in_every_epoch(ordeals, name, ranks):
    rows, per_epoch = ordeals[name, ranks].log.rows, ROWS // BATCH
    assert sorted(rows) == list(range(1, STEPS + 1))
    for first in range(1, STEPS + 1, per_epoch):
        assert sorted(row for step in range(first, first + per_epoch) for row in rows[step]) == list(range(ROWS))


def evaluations(out: Path) -> list[dict]:
    return [json.loads(line) for line in text_of(out / "evaluations.jsonl").splitlines()]
