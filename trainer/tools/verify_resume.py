"""The proof that resume is exact: real jobs, a real kill, and a comparison of everything.

python -m trainer verify-resume movielens
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from trainer.checkpoint.store import Checkpoints
from trainer.config.root import Config, to_toml
from trainer.core.errors import InputError
from trainer.core.outcome import environment_of_child_job
from trainer.core.run_directory import RunDirectory
from trainer.tools.compare_runs import Difference, differences

LEAST_STEPS = 4
TOLERANCE = 1e-5  # of another number of ranks, which add up in another order
ATTEMPTS = 5  # to kill a job before it is done
POLL_SECONDS = 0.002
SHOWN = 5


def verify_resume(
    config: Config, steps: int = 20, ranks: int = 2, other_ranks: int = 1, keep: str | None = None
) -> None:
    """Trains straight, and again with a kill in the middle, and compares. CONFIG is a TOML file or a name.

    Args:
        config: What to train.
        steps: Steps of each run, in place of train.steps and train.epochs.
        ranks: Ranks of the straight and of the killed run, all on this machine.
        other_ranks: Ranks that the killed run goes on with in the second comparison.
        keep: A new directory for the runs and their logs, which stay there. Unset: a temporary one, deleted.

    Raises:
        InputError: An argument is out of range, or the configuration cannot be trained.
        SystemExit: Resume is not exact; exit code 1.
    """
    for name, value, least in (("steps", steps, LEAST_STEPS), ("ranks", ranks, 1), ("other-ranks", other_ranks, 1)):
        if value < least:
            raise InputError(f"--{name} is {value}; it must be {least} or more")
    if ranks == other_ranks:
        raise InputError(f"--other-ranks is {other_ranks}, and so is --ranks; they must differ")
    config = _shortened(config, steps)
    # On the same number of ranks all must be equal bit by bit, on another within TOLERANCE. Reduced precision rounds
    # differently there, killed or not: the second comparison is one of two runs in fp32.
    exact = _in_fp32(config)
    with _folder(keep) as folder:
        trial = Trial(folder, config, ranks)
        trial.begin()
        again = trial.go_on(ranks)
        if exact != config:
            print("on another number of ranks, bf16 and quantized embeddings round differently: once more in fp32")
            trial = Trial(folder / "fp32", exact, ranks)
            trial.begin()
        elsewhere = trial.go_on(other_ranks)
    columns = [
        Column(f"on {_ranks(ranks)} again", again, 0.0),
        Column(f"on {_ranks(other_ranks)}" + (", in fp32" if exact != config else ""), elsewhere, TOLERANCE),
    ]
    print(f"\n{_table(columns)}\n")
    verdicts = [column.passes() for column in columns]
    if not all(verdicts):
        raise SystemExit(1)


@dataclass(frozen=True)
class Column:
    """One comparison with the straight run.

    Attributes:
        title: On how many ranks the killed run went on.
        differences: What was compared.
        allowed: The largest difference that passes.
    """

    title: str
    differences: list[Difference]
    allowed: float

    def passes(self) -> bool:
        """Prints the verdict and returns it."""
        *_, worst = sorted(self.differences, key=lambda difference: difference.size)
        wrong = [difference for difference in self.differences if difference.size > self.allowed]
        largest = f"the largest difference is {_size(worst.size)}, {worst.name}" if worst.size else "all are equal"
        if not wrong:
            print(f"PASS {self.title}: {len(self.differences)} things compared, {largest}")
            return True
        print(f"FAIL {self.title}: {len(wrong)} of {len(self.differences)} things differ, {largest}")
        for difference in wrong[:SHOWN]:
            print(f"     {_size(difference.size):>9}  {difference.kind}: {difference.name}")
        return False


class Trial:
    """Jobs of one configuration in one folder: a straight run, a killed one, and those that go on from there.

    Args:
        folder: Where their run directories and logs go.
        config: What to train.
        ranks: Ranks of the straight and of the killed run.
    """

    def __init__(self, folder: Path, config: Config, ranks: int) -> None:
        self._folder, self._config, self._ranks = folder, config, ranks
        self._steps = config.train.steps or 0

    def begin(self) -> None:
        """Trains straight, and once more until the job is killed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._train("straight", self._config, self._ranks)
        self._say(f"straight to step {self._steps}", self._ranks)
        self._kill_in_the_middle()
        steps = (self._folder / "killed/metrics.jsonl").read_text().count("\n")
        self._say(f"killed with SIGKILL after step {steps}", self._ranks)

    def go_on(self, ranks: int) -> list[Difference]:
        """Lets a copy of the killed run go on to the end, and compares it with the straight one."""
        name = f"resumed-on-{ranks}"
        shutil.copytree(self._folder / "killed", self._folder / name)
        start = self._saved("killed")[-1]
        planned = self._config if ranks == self._ranks else _changed(self._config, {"planner": {"plan": None}})
        self._train(name, planned, ranks, "--resume", "must")
        self._say(f"gone on from the checkpoint of step {start}", ranks)
        return differences(str(self._folder / "straight"), str(self._folder / name), self._steps)

    def _kill_in_the_middle(self) -> None:
        for _ in range(ATTEMPTS):
            shutil.rmtree(self._folder / "killed", ignore_errors=True)
            with self._job("killed", self._config, self._ranks) as job:
                while job.poll() is None and not any(2 * step >= self._steps for step in self._saved("killed")):
                    time.sleep(POLL_SECONDS)
                _kill_workers(job)
            saved = self._saved("killed")
            if not saved:
                raise _failed(self._folder / "killed.log")
            if saved[-1] < self._steps:
                return
        raise InputError(f"--steps is {self._steps}, which are done before the job can be killed; use more")

    def _train(self, name: str, config: Config, ranks: int, *flags: str) -> None:
        with self._job(name, config, ranks, *flags) as job:
            if job.wait():
                raise _failed(self._folder / f"{name}.log")

    @contextlib.contextmanager
    def _job(self, name: str, config: Config, ranks: int, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        file, out = self._folder / f"{name}.toml", self._folder / name
        file.write_text(to_toml(config))
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        trainer = ["trainer", "train", str(file), "--out", str(out), *flags]
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [sys.executable, "-m", *torchrun, "-m", *trainer]
            job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment_of_child_job())
            try:
                yield job
            finally:
                job.terminate()
                job.wait()

    def _saved(self, name: str) -> list[int]:
        return Checkpoints(RunDirectory(str(self._folder / name))).steps()

    def _say(self, what: str, ranks: int) -> None:
        print(f"{what}, on {_ranks(ranks)}", flush=True)


def _shortened(config: Config, steps: int) -> Config:
    """Returns a configuration with a checkpoint every quarter of some steps, and with no evaluation but those between.

    The last checkpoint before the kill is then not the last of the run, wherever the job is when it is killed.
    """
    between = 0 < config.evaluate.every_steps < steps
    keep = config.checkpoint.keep.model_copy(update={"best": None})
    changes: dict[str, dict[str, Any]] = {
        "data": {"validation": config.data.validation if between else [], "test": []},
        "train": {"steps": steps, "epochs": None},
        "checkpoint": {"every_steps": steps // 4, "every_minutes": 0.0, "keep": keep},
        "report": {"interval_steps": 1, "tensorboard": False},
    }
    return _changed(config, changes)


def _in_fp32(config: Config) -> Config:
    """Returns a configuration without anything that rounds to fewer bits than fp32 has."""
    return _changed(config, {"train": {"precision": "fp32"}, "comms": {"forward": "fp32", "backward": "fp32"}})


def _changed(config: Config, changes: dict[str, dict[str, Any]]) -> Config:
    sections = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return config.model_copy(update=sections)


def _kill_workers(job: subprocess.Popen[bytes]) -> None:
    """Kills the ranks of a job, and lets torchrun find them dead."""
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    for pid in children.read_text().split() if job.poll() is None else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    job.wait()


def _failed(log: Path) -> InputError:
    """Returns the error of a job that failed: the trainer's own line, or the end of the log."""
    said = log.read_text(errors="replace")
    if found := re.search(r"^error: (.*)$", said, re.MULTILINE):
        return InputError(found[1])
    print(said[-4000:], file=sys.stderr)
    return InputError(f"job '{log.stem}' failed; the end of its log is above")


@contextlib.contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="verify-resume-") as name:
            yield Path(name)
    else:
        try:
            Path(keep).mkdir(parents=True)
        except OSError as error:
            raise InputError(f"--keep is '{keep}', which cannot be made: {error}; choose a new directory") from error
        yield Path(keep)


def _table(columns: list[Column]) -> str:
    kinds = list(dict.fromkeys(difference.kind for column in columns for difference in column.differences))
    rows = [[kind, *(_worst(column, kind) for column in columns)] for kind in kinds]
    allowed = ["allowed", *(_size(column.allowed) for column in columns)]
    return tabulate([*rows, allowed], headers=["compared", *(column.title for column in columns)])


def _worst(column: Column, kind: str) -> str:
    sizes = [difference.size for difference in column.differences if difference.kind == kind]
    return f"{_size(max(sizes))} ({len(sizes)})" if sizes else "missing"


def _size(size: float) -> str:
    return "equal" if size == 0 else f"{size:.1e}"


def _ranks(number: int) -> str:
    return f"{number} rank{'s' * (number > 1)}"
