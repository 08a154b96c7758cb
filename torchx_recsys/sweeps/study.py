"""Optuna's part of a sweep: it chooses values, stops trials early, and stores the sweep in its journal.

Uses Optuna's ask-and-tell interface: its own loop would run trials as functions of this process, and lose them with it.
"""

import fcntl
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from optuna.trial import FrozenTrial, Trial, TrialState

from torchx_recsys.sweeps.file import Sweep, Value
from trainer.core.errors import InputError

NAME = "sweep"
JOURNAL = "optuna.log"
LOCK = "lock"
FILE = "sweep.toml"  # where `torchx sweep tune` writes it
STOPPED_EARLY, WHY = "stopped_early", "why"


class _JournalLock(JournalFileOpenLock):
    """A lock of the journal by the kernel, which does not outlive its process.

    Optuna's own lock is a file. Left by a killed process, it would block the next one for half a minute, and forever
    if the journal has a relative path (optuna 5.0).
    """

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self._file = file
        self._held: IO[str] | None = None

    def acquire(self) -> bool:
        """Acquires the lock, waiting if necessary."""
        self._held = open(self._file, "w")  # noqa: SIM115  held beyond this call
        fcntl.flock(self._held, fcntl.LOCK_EX)
        return True

    def release(self) -> None:
        """Releases the lock."""
        if self._held:
            self._held.close()


def drop_torn_line(sweep: Sweep) -> None:
    """Removes the partial last line of a killed process, behind which Optuna could read nothing."""
    file = Path(sweep.settings.out, JOURNAL)
    if file.exists():
        with file.open("rb+") as journal:
            journal.truncate(journal.read().rfind(b"\n") + 1)


class Study:
    """The trials of a sweep, in a journal that outlives this process.

    Args:
        sweep: The sweep.

    Raises:
        InputError: The directory has other files or trials with another aim, or cannot be written.
    """

    def __init__(self, sweep: Sweep) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._sweep = sweep
        folder = Path(sweep.settings.out)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = {file.name for file in folder.iterdir()} - {LOCK, FILE}
            if others and JOURNAL not in others:
                raise InputError(f"{sweep.source}out is '{folder}', which has other files; name a new directory")
            journal = str(folder / JOURNAL)
            storage = JournalStorage(JournalFileBackend(journal, _JournalLock(f"{journal}.flock")))
            self.optuna = optuna.create_study(
                storage=storage,
                study_name=NAME,
                direction="maximize" if sweep.higher else "minimize",
                load_if_exists=True,
                pruner=_pruner(sweep),
            )
        except OSError as error:
            raise InputError(f"{sweep.source}out is '{folder}', which cannot be written: {error.strerror}") from error
        except InputError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(
                f"{sweep.source}out is '{folder}', whose {JOURNAL} is damaged: {error}; put a copy back, or name "
                "another out"
            ) from error
        aim = self.optuna.user_attrs.get("aim", sweep.aim)
        if aim != sweep.aim:
            raise InputError(
                f"{sweep.source}aim is '{sweep.aim}', but the trials in {folder} have '{aim}'; name another out"
            )
        if "aim" not in self.optuna.user_attrs:
            self.optuna.set_user_attr("aim", sweep.aim)

    @property
    def cancelled(self) -> bool:
        """Whether the sweep was cancelled after it was last begun."""
        return self.optuna.user_attrs.get("cancelled", False)

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self.optuna.set_user_attr("cancelled", value)

    @property
    def trials(self) -> list[FrozenTrial]:
        """All trials by number."""
        return self.optuna.get_trials(deepcopy=False)

    def running(self) -> list[FrozenTrial]:
        """Returns the trials that have not ended."""
        return [trial for trial in self.trials if trial.state == TrialState.RUNNING]

    def ask(self) -> FrozenTrial:
        """Begins a trial with values that Optuna chooses."""
        number = len(self.trials)
        if not number and self._sweep.start:
            self.optuna.enqueue_trial(self._sweep.start)
        # A new sampler for each trial: a single one with a seed would repeat its sequence after a restart.
        self.optuna.sampler = _sampler(self._sweep, number)
        trial = self.optuna.ask({key: one.distribution for key, one in self._sweep.dimensions.items()})
        return self.trials[trial.number]

    def report(self, trial: FrozenTrial, values: Mapping[int, float]) -> bool:
        """Reports the values of a trial by step; returns whether to stop it early."""
        live = Trial(self.optuna, trial._trial_id)
        stop = False
        for step, value in sorted(values.items()):
            if step not in trial.intermediate_values:
                live.report(value, step)
                stop = stop or live.should_prune()
        # The first trial with the values of the file is what the others are compared with.
        return stop and not (self._sweep.start and trial.number == 0)

    def note(self, trial: FrozenTrial, key: str, value: Value) -> None:
        """Stores an attribute of a trial."""
        Trial(self.optuna, trial._trial_id).set_user_attr(key, value)

    def end(self, trial: FrozenTrial, state: TrialState, value: float | None = None) -> None:
        """Ends a trial."""
        self.optuna.sampler = RandomSampler()  # not GridSampler, which would stop Optuna's own loop, but none runs
        self.optuna.tell(trial.number, value if state == TrialState.COMPLETE else None, state)

    def best(self) -> FrozenTrial | None:
        """Returns the best trial that trained to its end; None if there is none."""
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE and trial.value is not None]
        return max(done, key=self._merit, default=None)

    def _merit(self, trial: FrozenTrial) -> float:
        value = last_value(trial)
        return float("-inf") if value is None else value if self._sweep.higher else -value

    def ranked(self) -> list[FrozenTrial]:
        """Returns all trials: finished trials from the best, then the others by their last value."""
        states = [TrialState.COMPLETE, TrialState.RUNNING, TrialState.PRUNED]

        def place(trial: FrozenTrial) -> tuple[int, float]:
            return states.index(trial.state) if trial.state in states else len(states), -self._merit(trial)

        return sorted(self.trials, key=place)


def last_value(trial: FrozenTrial) -> float | None:
    """Returns the latest value of a trial; None before its first evaluation."""
    return trial.intermediate_values[trial.last_step] if trial.last_step is not None else None


def _sampler(sweep: Sweep, number: int) -> BaseSampler:
    seed = sweep.settings.seed + number
    match sweep.settings.sampler:
        case "grid":
            return GridSampler({key: [*one.words] for key, one in sweep.dimensions.items()}, seed=sweep.settings.seed)
        case "random":
            return RandomSampler(seed=seed)
    # Without constant_liar, concurrent trials would have similar values.
    return TPESampler(seed=seed, constant_liar=True)


def _pruner(sweep: Sweep) -> BasePruner:
    settings = sweep.settings
    steps = settings.min_steps or max(1, sweep.config.evaluate.every_steps)
    match settings.pruner:
        case "halving":
            return SuccessiveHalvingPruner(min_resource=steps, reduction_factor=settings.factor)
        case "hyperband":
            return HyperbandPruner(min_resource=steps, reduction_factor=settings.factor)
    return NopPruner()
