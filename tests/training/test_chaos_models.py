"""Fault injection for every built-in model: a job that is interrupted at random moments ends as if undisturbed.

By default two models are; `--all` takes every one.
"""

import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from command import start_trainer, write_config
from forked import ForkedProcess
from jobs import losses, saved_tensors
from ports import free_port
from ready_made import NAMES, ready_made, sampled, write_ratings
from test_chaos import evaluations, text_of

pytestmark = pytest.mark.more("test_resume.py and test_preemption.py interrupt at one moment")

RANKS, STEPS, INTERRUPTIONS = 2, 40, 3
SAVE_EVERY, EVALUATE_EVERY = 4, 10
MOST_STEPS, MOST_SECONDS = 7, 0.1  # that an interruption comes after a start
STOPPED = 1 / 3  # of the interruptions ask a rank to stop
PATIENCE_SECONDS = 600


class Job:
    """The ranks of a run, started as torchrun starts them but forked, and started again after each interruption.

    Args:
        file: The configuration.
        out: The run directory.
        seed: Of the moments and kinds of the interruptions.

    Attributes:
        out: As above.
        interrupted: How often the job was interrupted while it ran.
    """

    def __init__(self, file: Path, out: Path, seed: int) -> None:
        self.out, self.interrupted = out, 0
        self._file, self._random = file, random.Random(seed)

    def finish(self, interruptions: int) -> "Job":
        """Trains to the end, after so many interruptions."""
        for _ in range(interruptions):
            ranks, target = self._start(), self._steps() + self._random.randint(1, MOST_STEPS)
            self._wait(lambda target=target: self._steps() >= target, ranks)
            time.sleep(self._random.random() * MOST_SECONDS)
            self.interrupted += self._interrupt(ranks)
        assert [rank.wait(PATIENCE_SECONDS) for rank in self._start()] == [0] * RANKS, text_of(self._log)
        return self

    def _start(self) -> list[ForkedProcess]:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        world = {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS), "TORCHELASTIC_RUN_ID": "chaos", **meeting}
        words = ["train", self._file, "--out", self.out]
        return [
            start_trainer(words, self._log, self._log, 0, RANK=str(rank), LOCAL_RANK=str(rank), **world)
            for rank in range(RANKS)
        ]

    def _interrupt(self, ranks: list[ForkedProcess]) -> bool:
        """Kills one rank and then the others, as torchrun does, or asks one to stop; returns whether all still ran."""
        in_time, first = all(rank.poll() is None for rank in ranks), self._random.choice(ranks)
        if self._random.random() < STOPPED:
            send(first, signal.SIGTERM)
        else:
            send(first, signal.SIGKILL)
            time.sleep(self._random.random() * MOST_SECONDS)
            for rank in ranks:
                send(rank, signal.SIGKILL)
        for rank in ranks:
            rank.wait(PATIENCE_SECONDS)
        return in_time

    def _wait(self, condition: Callable[[], bool], ranks: list[ForkedProcess]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition() and all(rank.poll() is None for rank in ranks):
            assert time.monotonic() < deadline, text_of(self._log)
            time.sleep(0.005)

    def _steps(self) -> int:
        return text_of(self.out / "metrics.jsonl").count("\n")

    @property
    def _log(self) -> Path:
        return Path(f"{self.out}.log")


def send(rank: ForkedProcess, number: signal.Signals) -> None:
    if rank.poll() is None:
        with suppress(ProcessLookupError):  # it may end meanwhile
            rank.send_signal(number)


MATRIX = "name", lambda whole: sampled(NAMES, 2, whole)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("chaos-models"))


@pytest.mark.sample(1)
def test_an_interrupted_model_ends_bit_for_bit_as_its_baseline(data, tmp_path, name):
    changes = {"train__steps": STEPS, "checkpoint__every_steps": SAVE_EVERY, "evaluate__every_steps": EVALUATE_EVERY}
    file = write_config(tmp_path / "config.toml", ready_made(name, data, **changes))
    baseline = Job(file, tmp_path / "baseline", 0).finish(0)
    job = Job(file, tmp_path / "interrupted", NAMES.index(name)).finish(INTERRUPTIONS)
    assert job.interrupted >= INTERRUPTIONS // 2
    assert losses(job.out) == losses(baseline.out)
    np.testing.assert_equal(evaluations(job.out), evaluations(baseline.out))
    expected, found = saved_tensors(baseline.out, STEPS), saved_tensors(job.out, STEPS)
    assert found.keys() == expected.keys()
    assert [part for part, value in expected.items() if not torch.equal(found[part], value)] == []
