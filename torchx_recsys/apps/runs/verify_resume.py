"""Verifies that resume is exact: real jobs, a real kill, and a comparison of everything.

python -m trainer verify-resume movielens
"""

import os
import shutil
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from torchx_recsys.apps.runs.differences import Difference, differences
from torchx_recsys.apps.runs.local_job import error_of_failed_job, kill_ranks, run_job, start_job
from trainer.checkpoint.store import Checkpoints
from trainer.config.root import Config, to_toml
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.core.outcome import FAILED
from trainer.core.run_directory import RunDirectory
from trainer.extensions.compiled import DECIDED

LEAST_STEPS = 4
TOLERANCE = 1e-5  # for another number of ranks, which sums in a different order
KILL_ATTEMPTS = 5
POLL_SECONDS = 0.002
SHOWN_DIFFERENCES = 5


def verify_resume(
    config: Config, steps: int = 20, ranks: int = 2, other_ranks: int = 1, keep: str | None = None
) -> None:
    """Compares a baseline run with a run that is killed and resumed. CONFIG is a TOML file or a name.

    Args:
        config: The configuration to train.
        steps: Steps of each run, instead of train.steps and train.epochs.
        ranks: Ranks of the baseline and of the interrupted run, all on this machine.
        other_ranks: Ranks on which the interrupted run resumes in the second comparison.
        keep: A new directory for the runs and their logs, which stay there. Unset: a temporary one, deleted.

    Raises:
        InputError: An argument is out of range, or the configuration cannot be trained.
        SystemExit: Resume is not exact, or a job failed; exit code 1.
    """
    for name, value, least in (("steps", steps, LEAST_STEPS), ("ranks", ranks, 1), ("other-ranks", other_ranks, 1)):
        if value < least:
            raise InputError(f"--{name} is {value}; it must be {least} or more")
    if ranks == other_ranks:
        raise InputError(f"--other-ranks is {other_ranks}, and so is --ranks; they must differ")
    if config.data.segments.path:
        raise InputError(
            "data.segments.path is set, but the runs take their steps from one set of files; add --data.segments.path "
            "None --data.train FILES, such as those of one segment"
        )
    config = _shortened(config, steps)
    # On the same number of ranks all must be equal bit by bit, on another number within TOLERANCE. There, reduced
    # precision rounds differently even without a kill, so the second comparison uses two runs in fp32.
    exact = _changed(config, {"train": {"precision": "fp32"}, "comms": {"forward": "fp32", "backward": "fp32"}})
    with _new_folder(keep) if keep else tempfile.TemporaryDirectory(prefix="verify-resume-") as folder:
        runs = ComparedRuns(Path(folder), config, ranks)
        runs.train()
        on_same = runs.resume(ranks)
        if exact != config:
            print("on another number of ranks, bf16 and quantized embeddings round differently: once more in fp32")
            runs = ComparedRuns(Path(folder, "fp32"), exact, ranks)
            runs.train()
        on_other = runs.resume(other_ranks)
    precision = ", in fp32" if exact != config else ""
    comparisons = [
        Comparison(f"on {plural(ranks, 'rank')} again", on_same, 0.0),
        Comparison(f"on {plural(other_ranks, 'rank')}{precision}", on_other, TOLERANCE),
    ]
    print(f"\n{_table(comparisons)}\n")
    for comparison in comparisons:
        comparison.print_verdict()
    if any(comparison.too_large for comparison in comparisons):
        raise SystemExit(FAILED)


@dataclass(frozen=True)
class Comparison:
    """The comparison of a resumed run with the baseline.

    Attributes:
        title: Ranks of the resumed run.
        differences: Differences of everything that the runs have.
        allowed: Largest difference that passes.
    """

    title: str
    differences: list[Difference]
    allowed: float

    @property
    def too_large(self) -> list[Difference]:
        """Differences that do not pass."""
        return [difference for difference in self.differences if difference.size > self.allowed]

    def print_verdict(self) -> None:
        """Prints PASS, or FAIL and the first differences that are too large."""
        worst, wrong = max(self.differences, key=lambda difference: difference.size), self.too_large
        largest = f"the largest difference is {_size(worst.size)}, {worst.name}" if worst.size else "all are equal"
        if wrong:
            print(f"FAIL {self.title}: {len(wrong)} of {len(self.differences)} things differ, {largest}")
        else:
            print(f"PASS {self.title}: {len(self.differences)} things compared, {largest}")
        for difference in wrong[:SHOWN_DIFFERENCES]:
            print(f"     {_size(difference.size):>9}  {difference.kind}: {difference.name}")


@dataclass(frozen=True)
class ComparedRuns:
    """Runs of one configuration: `baseline`, `interrupted`, and resumed copies of it, `resumed-on-RANKS`.

    Attributes:
        folder: The folder of the run directories and logs.
        config: The configuration.
        ranks: Ranks of the baseline and of the interrupted run.
    """

    folder: Path
    config: Config
    ranks: int

    def train(self) -> None:
        """Trains the baseline to its end, and the interrupted run until its ranks are killed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        run_job(*self._job("baseline", self.config, self.ranks))
        print(f"baseline trained to step {self._steps}, on {plural(self.ranks, 'rank')}", flush=True)
        self._train_and_kill()
        step = (self.folder / "interrupted/metrics.jsonl").read_text().count("\n")
        print(f"interrupted with SIGKILL after step {step}, on {plural(self.ranks, 'rank')}", flush=True)

    def resume(self, ranks: int) -> list[Difference]:
        """Resumes a copy of the interrupted run, trains it to its end, and compares it with the baseline."""
        name, start = f"resumed-on-{ranks}", self._saved_steps()[-1]
        shutil.copytree(self.folder / "interrupted", self.folder / name)
        config = self.config if ranks == self.ranks else _changed(self.config, {"planner": {"plan": None}})
        run_job(*self._job(name, config, ranks), "--resume", "must")
        print(f"resumed from the checkpoint of step {start}, on {plural(ranks, 'rank')}", flush=True)
        return differences(str(self.folder / "baseline"), str(self.folder / name), self._steps)

    def _train_and_kill(self) -> None:
        for _ in range(KILL_ATTEMPTS):
            shutil.rmtree(self.folder / "interrupted", ignore_errors=True)
            self._decide_as_baseline()
            with start_job(*self._job("interrupted", self.config, self.ranks)) as job:
                while job.poll() is None and not any(2 * step >= self._steps for step in self._saved_steps()):
                    time.sleep(POLL_SECONDS)
                kill_ranks(job)
            saved = self._saved_steps()
            if not saved:
                raise error_of_failed_job(self.folder / "interrupted.log")
            if saved[-1] < self._steps:
                return
        raise InputError(f"--steps is {self._steps}, which are done before the job can be killed; use more")

    def _decide_as_baseline(self) -> None:
        """Has the interrupted run compiled from the step on that the baseline was: each measures its own steps."""
        if (decided := self.folder / "baseline" / DECIDED).exists():
            (self.folder / "interrupted").mkdir()
            shutil.copy(decided, self.folder / "interrupted")

    @property
    def _steps(self) -> int:
        assert self.config.train.steps
        return self.config.train.steps

    def _saved_steps(self) -> list[int]:
        return Checkpoints(RunDirectory(str(self.folder / "interrupted"))).steps()

    def _job(self, name: str, config: Config, ranks: int) -> tuple[int, Path, str, str, str, str]:
        """Writes a run's configuration and returns the arguments of `start_job` that train it."""
        file = self.folder / f"{name}.toml"
        file.write_text(to_toml(config))
        return ranks, self.folder / f"{name}.log", "train", str(file), "--out", str(self.folder / name)


def _shortened(config: Config, steps: int) -> Config:
    """Returns a configuration of `steps` steps that saves every quarter, and evaluates only between the ends.

    Then the last checkpoint before the kill is never the last of the run, wherever the kill hits the job.
    """
    keep = config.checkpoint.keep.model_copy(update={"best": None})
    saves = {"every_steps": steps // 4, "every_epochs": 0, "every_minutes": 0.0, "keep": keep}
    config = _changed(config, {"checkpoint": saves})
    # The length of an epoch is not known here.
    between = config.evaluate.every_epochs or any(config.evaluation_due(step, 0) for step in range(1, steps))
    changes: dict[str, dict[str, Any]] = {
        "data": {"validation": config.data.validation if between else [], "test": []},
        "train": {"steps": steps, "epochs": None},
        "report": {"interval_steps": 1, "tensorboard": False},
    }
    return _changed(config, changes)


def _changed(config: Config, changes: dict[str, dict[str, Any]]) -> Config:
    sections = {name: getattr(config, name).model_copy(update=values) for name, values in changes.items()}
    return config.model_copy(update=sections)


def _new_folder(path: str) -> nullcontext[str]:
    folder = Path(os.path.expanduser(path))  # no shell expands `--keep=~/x`
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"--keep is '{path}', which cannot be made: {error}; choose a new directory") from error
    return nullcontext(str(folder))


def _table(comparisons: list[Comparison]) -> str:
    kinds = dict.fromkeys(difference.kind for comparison in comparisons for difference in comparison.differences)
    rows = [[kind, *(_worst(comparison, kind) for comparison in comparisons)] for kind in kinds]
    allowed = ["allowed", *(_size(comparison.allowed) for comparison in comparisons)]
    return tabulate([*rows, allowed], headers=["compared", *(comparison.title for comparison in comparisons)])


def _worst(comparison: Comparison, kind: str) -> str:
    sizes = [difference.size for difference in comparison.differences if difference.kind == kind]
    return f"{_size(max(sizes))} ({len(sizes)})" if sizes else "missing"


def _size(size: float) -> str:
    return "equal" if size == 0 else f"{size:.1e}"
