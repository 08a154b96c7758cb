"""How fast a job saves and restores, and what a save costs the steps beside it."""

import itertools
import json
import os
import posixpath
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist
from tabulate import tabulate
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from trainer.checkpoint.restore import restore
from trainer.checkpoint.store import FOLDER, MANIFEST, Checkpoints
from trainer.config.root import Config, to_toml
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.errors import InputError
from trainer.core.outcome import environment_of_child_job
from trainer.core.run_directory import RunDirectory
from trainer.data.batch import Batch
from trainer.tools.bench.comparison import Comparison, alternate
from trainer.tools.bench.setting import batches_in_memory
from trainer.training.session import Session

WARM_STEPS = 5
RESTORE_RANKS = (1, 2, 4)
BESIDE_A_SAVE = 1 / 1.10  # the least speed of steps while a save runs, over that without
LIKE_PLAIN = 0.7  # the least speed of saving and restoring, over that of plain writing and reading


@dataclass(frozen=True)
class Restore:
    """How long a job took to restore.

    Attributes:
        ranks: Its ranks.
        seconds: From looking for a checkpoint to the last tensor, checksums included; one for each repeat.
        bytes: Of the checkpoint's files.
    """

    ranks: int
    seconds: list[float]
    bytes: int


def compare_checkpoints(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares steps beside a save with steps without, and saving and restoring with plain writing and reading.

    Args:
        session: A fresh one.
        steps: Steps per repeat of a loop.
        repeats: Repeats of everything.
    """
    numbers = itertools.count(1)
    return [
        *_compare_steps(session, numbers, steps, repeats),
        *_compare_files(session, numbers, repeats),
    ]


# Steps, while one save after the other runs.


def _compare_steps(session: Session, numbers: Iterator[int], steps: int, repeats: int) -> list[Comparison]:
    all_threads = torch.get_num_threads()
    batches = batches_in_memory(session)
    found = []
    for threads in dict.fromkeys((max(1, all_threads - 1), all_threads)):
        torch.set_num_threads(threads)
        beside, without = alternate(
            repeats,
            lambda: _step(session, batches, steps, numbers, saving=True),
            lambda: _step(session, batches, steps, numbers, saving=False),
        )
        spare = "a core to spare" if _cores() > threads * session.context.local_world_size else "no core to spare"
        found.append(
            Comparison(f"steps beside saves, {spare}", "steps alone", "steps/s", BESIDE_A_SAVE, beside, without)
        )
    return found


def _step(session: Session, batches: Iterator[Batch], steps: int, numbers: Iterator[int], saving: bool) -> float:
    """Returns steps per second; the time in which training waits for the copy of its state counts for no step."""
    pipeline = TrainPipelineSparseDist(session.model.model, session.model.optimizers.combined, session.context.device)
    for _ in range(WARM_STEPS):
        pipeline.progress(batches)
    start, copying = time.perf_counter(), 0.0
    for _ in range(steps):
        idle = broadcast_from_rank0(session.context, lambda: not session.saver.is_busy)
        if saving and idle:
            copying += _seconds(lambda: session.save(next(numbers)))
        pipeline.progress(batches)
    seconds = time.perf_counter() - start - copying
    session.saver.wait()
    pipeline.detach()
    return steps / seconds


# Saving and restoring, beside the same bytes plainly written and read.


def _compare_files(session: Session, numbers: Iterator[int], repeats: int) -> list[Comparison]:
    checkpoints = Checkpoints(session.directory)
    tensors = session.model.tensors()

    def save() -> None:
        session.save(next(numbers))
        session.saver.wait()

    def load() -> None:
        newest = broadcast_from_rank0(session.context, checkpoints.newest)
        assert newest is not None
        restore(newest, tensors, session.context)

    save()
    files = PlainFiles(session)
    files.write_lasting()
    timed = [
        lambda act=act: files.bytes / _seconds_on_all(session.context, act) / 1e6
        for act in (save, files.write_lasting, files.write, load, files.read)
    ]
    saved, written, cached, loaded, read = alternate(repeats, *timed)
    return [
        Comparison("saving, durable", "plain writing, durable", "MB/s", LIKE_PLAIN, saved, written),
        Comparison("saving, durable", "plain writing, may be lost", "MB/s", None, saved, cached),
        Comparison("restoring, checksums too", "plain reading", "MB/s", LIKE_PLAIN, loaded, read),
    ]


class PlainFiles:
    """The bytes of the newest checkpoint in files of the same sizes, those that a rank wrote on that rank.

    Args:
        session: The job that has saved it. As many of them are kept as checkpoints, for new files cost more than old
            ones that are written over.

    Attributes:
        bytes: Of all files, over all ranks.
    """

    def __init__(self, session: Session) -> None:
        self._run, context = session.directory, session.context
        step = broadcast_from_rank0(context, Checkpoints(session.directory).steps)[-1]
        folder = session.directory.path(FOLDER, f"step-{step:09d}")
        entries = json.loads(session.directory.fs.cat_file(posixpath.join(folder, MANIFEST)))["files"]
        self.bytes = sum(entry["bytes"] for entry in entries.values())
        mine = [name for name in entries if name.startswith(f"__{context.rank}_")]
        self._contents = {name: session.directory.fs.cat_file(posixpath.join(folder, name)) for name in mine}
        self._keep, self._written = session.config.checkpoint.keep.newest, 0

    def write_lasting(self) -> None:
        """Writes this rank's files, for a power cut not to take them, and deletes those that have had their time."""
        self._write(self._run.fs.durable)

    def write(self) -> None:
        """Does the same, but leaves it to the system when they reach the disk."""
        self._write(lambda path: self._run.fs.open(path, "wb"))

    def _write(self, open_file: Callable[[str], AbstractContextManager[IO[bytes]]]) -> None:
        self._run.fs.makedirs(self._path(self._written))
        for name, content in self._contents.items():
            with open_file(self._path(self._written, name)) as file:
                file.write(content)
            if self._written >= self._keep:
                self._run.fs.rm_file(self._path(self._written - self._keep, name))
        self._written += 1

    def read(self) -> None:
        """Reads this rank's files that were written last."""
        for name in self._contents:
            with self._run.fs.open(self._path(self._written - 1, name), "rb") as file:
                file.read()

    def _path(self, number: int, *names: str) -> str:
        return self._run.path("plain", str(number), *names)


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _seconds_on_all(context: DistributedContext, act: Callable[[], object]) -> float:
    """Returns how long something takes until the last rank has done it."""

    def act_together() -> None:
        act()
        dist.barrier()

    dist.barrier()
    return _seconds(act_together)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# Jobs that restore, on several numbers of ranks.


def time_restores(config: Config, run: RunDirectory, repeats: int) -> list[Restore]:
    """Starts jobs that go on from the newest checkpoint of a run, and returns how long each took to restore.

    Args:
        config: Of the run.
        run: Where its checkpoints are.
        repeats: Jobs for each number of ranks.
    """
    checkpoints = Checkpoints(run)
    step = checkpoints.steps()[-1]
    changed = config.model_copy(update={"train": config.train.model_copy(update={"steps": step, "epochs": None})})
    manifest = json.loads(run.read(FOLDER, f"step-{step:09d}", MANIFEST) or "")
    size = sum(entry["bytes"] for entry in manifest["files"].values())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.toml")
        file.write_text(to_toml(changed))
        return [Restore(ranks, [_restore(file, run, ranks) for _ in range(repeats)], size) for ranks in RESTORE_RANKS]


def _restore(file: Path, run: RunDirectory, ranks: int) -> float:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    trainer = ["-m", "trainer", "train", str(file), "--out", run.url, "--resume", "must"]
    job = subprocess.run(
        [sys.executable, *torchrun, *trainer], capture_output=True, text=True, env=environment_of_child_job()
    )
    if job.returncode:
        raise InputError(f"the job that restores on {ranks} ranks failed:\n{job.stderr}")
    return json.loads(run.read("run.json") or "")["restore_seconds"]


def render_restores(found: list[Restore]) -> str:
    """Returns a table for people."""
    rows = []
    for one in found:
        seconds = sorted(one.seconds)[len(one.seconds) // 2]
        rows.append([one.ranks, f"{seconds:.2f}", f"{one.bytes / seconds / 1e6:,.0f}"])
    return tabulate(rows, ["ranks", "restore, s", "MB/s"], disable_numparse=True)
