"""Jobs that are killed again and again, at random moments, end as if nothing had happened."""

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from command import write_config
from jobs import config, losses, saved_tensors, write_rows
from trainer_process import Training, committed, is_running

ROWS, BATCH, STEPS, EVERY = 1280, 64, 180, 10  # 20 steps an epoch
KILLS = 14  # of each of three jobs


@dataclass
class Attempt:
    """One start of a job, as the moments below see it."""

    job: Training
    first_step: int
    random: random.Random

    def has_said(self, text: str) -> bool:
        return text in self.job.said()

    def is_saving(self) -> bool:
        folders = (self.job.out / "checkpoints").glob("step-*")
        return any(not (folder / "manifest.json").exists() for folder in folders)

    def is_evaluating(self) -> bool:
        file = self.job.out / "evaluations.jsonl"
        evaluated = file.read_text().count("validation") if file.exists() else 0
        return self.job.steps() // EVERY > evaluated


def at_a_step(attempt: Attempt) -> None:
    target = attempt.first_step + attempt.random.randint(1, 15)
    attempt.job.wait_until(lambda: attempt.job.steps() >= target)


def at_the_first_step(attempt: Attempt) -> None:
    attempt.job.wait_until(lambda: attempt.job.steps() > attempt.first_step)


def in_the_last_step(attempt: Attempt) -> None:
    attempt.job.wait_until(lambda: attempt.job.steps() >= STEPS - 1)


def while_saving(attempt: Attempt) -> None:
    attempt.job.wait_until(attempt.is_saving)


def while_evaluating(attempt: Attempt) -> None:
    attempt.job.wait_until(attempt.is_evaluating)


def while_restoring(attempt: Attempt) -> None:
    lock = attempt.job.out / "lock.json"
    attempt.job.wait_until(lambda: lock.exists() and json.loads(lock.read_text())["pid"] in attempt.job.workers())
    time.sleep(attempt.random.random())


def kill_a_worker(job: Training, dice: random.Random) -> None:
    os.kill(dice.choice(job.workers()), signal.SIGKILL)


def kill_the_agent(job: Training, dice: random.Random) -> None:
    job.process.kill()


def kill_the_job(job: Training, dice: random.Random) -> None:
    job.kill()


def ask_the_agent(job: Training, dice: random.Random) -> None:
    job.signal(signal.SIGTERM)


def ask_a_worker(job: Training, dice: random.Random) -> None:
    os.kill(dice.choice(job.workers()), signal.SIGTERM)


MOMENTS = [at_a_step, while_saving, while_restoring, while_evaluating, at_the_first_step]
BLOWS = [kill_a_worker, kill_the_agent, kill_the_job, ask_the_agent, ask_a_worker]
Blow = tuple[Callable[[Attempt], None], Callable[[Training, random.Random], None]]


def plan_of_blows(dice: random.Random) -> list[Blow]:
    """Every moment and every blow comes up, in random pairs; the last blow falls in the last step."""
    moments = [MOMENTS[number % len(MOMENTS)] for number in range(KILLS - 1)]
    blows = [BLOWS[number % len(BLOWS)] for number in range(KILLS)]
    dice.shuffle(moments)
    dice.shuffle(blows)
    return list(zip([*moments, in_the_last_step], blows, strict=True))


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    """A configuration with evaluations, and the run of it that nobody disturbs."""
    folder = tmp_path_factory.mktemp("chaos")
    data = write_rows(folder / "data", [700, 580])
    tree = config(data, train__steps=STEPS, checkpoint__every_steps=EVERY, data__validation=[str(data)])
    tree["data"]["dense"]["row_id"] = {}
    tree["evaluate"] = {"every_steps": EVERY}
    tree["optimizer"]["sparse"]["name"] = "rowwise_adagrad"
    tree["optimizer"]["dense"] = {"name": "adamw", "learning_rate": 0.01}
    tree["model"]["name"] = "row_recorder:build"
    (folder / "rows").mkdir()
    file = write_config(folder / "config.toml", tree)
    job = start(file, folder / "straight", folder / "rows")
    said = job.end()
    assert job.code == 0, said
    return file, folder


def start(file: Path, out: Path, rows: Path) -> Training:
    return Training(file, out, ROWS=str(rows), PYTHONPATH=str(Path(__file__).parent))


def wait_for_the_end_of(workers: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(is_running(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows_of(folder: Path, first_step: int) -> dict[int, list[int]]:
    """Returns the ids of the rows that each step of an attempt was trained on, over both ranks."""
    found: dict[int, list[int]] = {}
    for worker in folder.iterdir():
        lines = worker.read_text().splitlines()[1 if first_step else 0 :]  # a restore begins with a rehearsal
        for step, line in enumerate(lines, first_step + 1):
            found.setdefault(step, []).extend(int(row) for row in line.split())
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_job_that_is_killed_again_and_again(setting, tmp_path, seed):
    file, folder = setting
    dice, out = random.Random(seed), tmp_path / "out"
    trained: dict[int, list[int]] = {}
    blows: list[Blow | None] = [*plan_of_blows(dice), None]
    struck = 0
    while blows:
        rows = tmp_path / f"rows-{len(blows)}"
        rows.mkdir(exist_ok=True)
        first_step = max(committed(out), default=0)
        job = start(file, out, rows)
        if blow := blows.pop(0):
            moment, strike = blow
            moment(Attempt(job, first_step, dice))
            if workers := job.workers():
                strike(job, dice)
                struck += 1
            job.end()
            wait_for_the_end_of(workers)  # ranks outlive their agent for as long as they take to save
        job.end()
        going_on = re.search(r"going on after step (\d+)", job.said())
        if going_on or first_step == 0:
            begun = int(going_on.group(1)) if going_on else 0
            trained = {step: ids for step, ids in trained.items() if step <= begun} | rows_of(rows, begun)
    assert struck >= KILLS - 1  # the last step can end before it is hit
    assert job.code == 0, job.said()
    assert committed(out)[-1] == STEPS
    assert losses(out) == losses(folder / "straight")
    whole, again = saved_tensors(folder / "straight", STEPS), saved_tensors(out, STEPS)
    assert whole.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
    per_epoch = ROWS // BATCH
    for epoch in range(STEPS // per_epoch):
        steps = range(epoch * per_epoch + 1, (epoch + 1) * per_epoch + 1)
        assert sorted(row for step in steps for row in trained[step]) == list(range(ROWS))
    np.testing.assert_equal(evaluations(out), evaluations(folder / "straight"))


def evaluations(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
