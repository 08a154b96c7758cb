"""Measures saving, restoring, and the cost of a save for concurrent steps."""

import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from tabulate import tabulate

from benchmarks.bench.comparison import Comparison, alternate, median_and_spread
from benchmarks.bench.setting import WARM_STEPS
from benchmarks.machine import available_cores
from torchx_recsys.apps.calibrate.steps import batches_in_memory
from torchx_recsys.apps.runs.local_job import run_job
from trainer.batches.batch import Batch
from trainer.checkpoint.restore import restore
from trainer.checkpoint.store import FOLDER, MANIFEST, Checkpoints
from trainer.config.root import Config, to_toml
from trainer.core.distributed import broadcast_from_rank0
from trainer.core.run_directory import RunDirectory
from trainer.training.session import Session

RESTORE_RANKS = (1, 2, 4)
STEPS_TARGET = 1 / 1.10  # target of the ratio: steps during saves may take a tenth longer
FILES_TARGET = 0.7


def compare_checkpoints(session: Session, steps: int, repeats: int) -> list[Comparison]:
    """Compares steps during saves with steps without, and saving and restoring with plain writing and reading."""
    step_numbers = itertools.count(1)
    return [*_compare_steps(session, step_numbers, steps, repeats), *_compare_files(session, step_numbers, repeats)]


def _compare_steps(session: Session, step_numbers: Iterator[int], steps: int, repeats: int) -> list[Comparison]:
    all_threads, batches = torch.get_num_threads(), itertools.cycle(batches_in_memory(session))
    comparisons = []
    for threads in dict.fromkeys((max(1, all_threads - 1), all_threads)):
        torch.set_num_threads(threads)
        during, without = alternate(
            repeats,
            lambda: _steps_per_second(session, batches, steps, step_numbers, saves=True),
            lambda: _steps_per_second(session, batches, steps, step_numbers, saves=False),
        )
        spare = available_cores() > threads * session.context.local_world_size
        what = f"steps during saves, {'a' if spare else 'no'} core to spare"
        comparisons.append(Comparison(what, "steps without saves", "steps/s", STEPS_TARGET, during, without))
    return comparisons


def _steps_per_second(
    session: Session, batches: Iterator[Batch], steps: int, step_numbers: Iterator[int], saves: bool
) -> float:
    """Takes steps, with back-to-back saves if `saves`. Excludes the time of staging, in which steps wait."""
    training_step = session.training_step()
    for step in itertools.islice(step_numbers, WARM_STEPS):
        training_step.take(step, batches)
    start, staging_seconds = time.perf_counter(), 0.0
    for step in itertools.islice(step_numbers, steps):
        if broadcast_from_rank0(session.context, lambda: saves and not session.saver.is_busy):
            staging_seconds += _seconds(partial(session.save, step))
        training_step.take(step, batches)
    seconds = time.perf_counter() - start - staging_seconds
    session.saver.wait()
    training_step.detach()
    return steps / seconds


def _compare_files(session: Session, step_numbers: Iterator[int], repeats: int) -> list[Comparison]:
    checkpoints, tensors = Checkpoints(session.directory), session.model.tensors()

    def save() -> None:
        session.save(next(step_numbers))
        session.saver.wait()

    def load() -> None:
        newest = broadcast_from_rank0(session.context, checkpoints.newest)
        assert newest is not None
        restore(newest, tensors, session.context)

    save()
    files = PlainFiles(session)
    files.write(fsync=True)
    acts = (save, partial(files.write, fsync=True), partial(files.write, fsync=False), load, files.read)
    rates = alternate(repeats, *(lambda act=act: files.bytes / _seconds_on_all_ranks(act) / 1e6 for act in acts))
    saved, synced, cached, loaded, read = rates
    return [
        Comparison("saving a checkpoint", "writing files with fsync", "MB/s", FILES_TARGET, saved, synced),
        Comparison("saving a checkpoint", "writing files without fsync", "MB/s", None, saved, cached),
        Comparison("restoring a checkpoint", "reading files", "MB/s", FILES_TARGET, loaded, read),
    ]


class PlainFiles:
    """This rank's bytes of the newest checkpoint, as a plain file.

    Keeps one copy for each kept checkpoint, because a new file costs more than overwriting an old file.

    Args:
        session: The session that has saved the checkpoint.

    Attributes:
        bytes: Size of the checkpoint, over all ranks.
    """

    def __init__(self, session: Session) -> None:
        self._run, self._rank = session.directory, session.context.rank
        step = broadcast_from_rank0(session.context, Checkpoints(self._run).steps)[-1]
        sizes = _file_sizes(self._run, step)
        self.bytes = sum(sizes.values())
        paths = [
            self._run.path(FOLDER, f"step-{step:09d}", name) for name in sizes if name.startswith(f"__{self._rank}_")
        ]
        self._content = b"".join(self._run.fs.cat_file(path) for path in paths)
        self._kept_copies, self._copies = session.config.checkpoint.keep.newest, 0

    def write(self, fsync: bool) -> None:
        """Writes a copy, and deletes the oldest."""
        fs, path = self._run.fs, self._path(self._copies)
        with fs.durable(path) if fsync else fs.open(path, "wb") as file:
            file.write(self._content)
        if self._copies >= self._kept_copies:
            fs.rm_file(self._path(self._copies - self._kept_copies))
        self._copies += 1

    def read(self) -> None:
        """Reads the newest copy."""
        self._run.fs.cat_file(self._path(self._copies - 1))

    def _path(self, copy: int) -> str:
        return self._run.path(f"plain-{self._rank}-{copy}")


def _file_sizes(run: RunDirectory, step: int) -> dict[str, int]:
    manifest = json.loads(run.read(FOLDER, f"step-{step:09d}", MANIFEST) or "")
    return {name: entry["bytes"] for name, entry in manifest["files"].items()}


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _seconds_on_all_ranks(act: Callable[[], object]) -> float:
    """Returns the time until the last rank has finished."""
    dist.barrier()
    return _seconds(lambda: (act(), dist.barrier()))


@dataclass(frozen=True)
class Restore:
    """The time to restore a checkpoint.

    Attributes:
        ranks: Ranks of each job.
        seconds: From the search for a checkpoint to the last tensor, with checksums, for each repeat.
        bytes: Size of the checkpoint's files.
    """

    ranks: int
    seconds: list[float]
    bytes: int


def time_restores(config: Config, run: RunDirectory, repeats: int) -> list[Restore]:
    """Starts jobs that resume from the newest checkpoint of a run, with no step left to train.

    Args:
        config: Configuration of the run.
        run: The run directory.
        repeats: Jobs for each number of ranks.
    """
    step = Checkpoints(run).steps()[-1]
    ended = config.model_copy(update={"train": config.train.model_copy(update={"steps": step, "epochs": None})})
    size = sum(_file_sizes(run, step).values())
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder, "config.toml"), Path(folder, "restore.log")
        file.write_text(to_toml(ended))

        def restore_seconds(ranks: int) -> float:
            run_job(ranks, log, "train", str(file), "--out", run.url, "--resume", "must")
            return json.loads(run.read("run.json") or "")["restore_seconds"]

        return [Restore(ranks, [restore_seconds(ranks) for _ in range(repeats)], size) for ranks in RESTORE_RANKS]


def render_restores(restores: list[Restore]) -> str:
    """Returns a table of median times with their spread."""
    rows = [
        [one.ranks, median_and_spread(one.seconds), f"{one.bytes / statistics.median(one.seconds) / 1e6:,.0f}"]
        for one in restores
    ]
    return tabulate(rows, ["ranks", "restore, s", "MB/s"], disable_numparse=True)
