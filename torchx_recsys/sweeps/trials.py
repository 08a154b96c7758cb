"""Runs a sweep: begins trials as jobs, follows their values, and stops or ends them.

All state is in Optuna's journal and in the notes of submissions. Whatever is killed, the same command therefore
continues: it follows running jobs, and submits failed jobs again, which resume from their checkpoints.
"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate
from math import isfinite

from optuna.trial import FrozenTrial, TrialState
from torchx.specs import AppState

from components.cli.ending import first_error
from schedulers.errors import MaybeSubmitted, SchedulerError
from schedulers.queue_room import PAUSE_SECONDS, NoRoom
from torchx_recsys.pipelines.jobs import Jobs, Look, Target
from torchx_recsys.sweeps.file import Sweep
from torchx_recsys.sweeps.study import STOPPED_EARLY, WHY, Study
from trainer.core.errors import InputError
from trainer.core.outcome import is_wrong_input
from trainer.core.run_directory import RunDirectory

POLL_SECONDS = 2
# How often the job of a trial is submitted again after a failure, besides restarts by its scheduler (max_retries).
MOST_SUBMISSIONS = 3
# A sweep ends if this many first trials all fail, instead of spending its whole budget on one mistake.
FAILED_AT_FIRST = 3


@dataclass
class Course:
    """A sweep in progress.

    Attributes:
        sweep: The sweep.
        study: Its trials.
        jobs: Their jobs.
        say: Prints a line.
        seen: Names of the trials whose jobs this process has submitted, or found active. If such a job is cancelled,
            its trial ends; the trial of a job cancelled earlier continues.
        refusals: How often this process failed to submit each trial.
        waiting: Names of the trials for which there was no room on the cluster.
        next_attempt: The monotonic time of the next submission, if there was no room for a job.
    """

    sweep: Sweep
    study: Study
    jobs: Jobs
    say: Callable[[str], None]
    seen: set[str] = field(default_factory=set)
    refusals: Counter[str] = field(default_factory=Counter)
    waiting: set[str] = field(default_factory=set)
    next_attempt: float = 0.0

    def run(self, target: Target) -> bool:
        """Begins and follows trials until the budget is used up and all have ended; returns False if it was cancelled.

        Raises:
            InputError: The first trials have all failed, or a trial cannot be submitted.
        """
        self.study.cancelled = False
        while not self.study.cancelled:
            running = self.study.running()
            looks = self.jobs.looks({name_of(trial) for trial in running})
            for trial in running:
                self._follow(trial, looks[name_of(trial)], target)
            self._check_failures()
            while self._may_submit and len(self.study.running()) < self.sweep.settings.at_once and self._has_budget():
                self._begin(self.study.ask(), Look(None), target)
            if not self.study.running():
                return True
            time.sleep(POLL_SECONDS)
        self.cancel()  # ends jobs that began meanwhile
        return False

    def cancel(self) -> int:
        """Ends the jobs of running trials, and any process that follows them; returns how many. `run` resumes them."""
        self.study.cancelled = True
        looks = self.jobs.looks({name_of(trial) for trial in self.study.running()})
        active = [look for look in looks.values() if look.is_active]
        for look in active:
            self.jobs.cancel(look)
        return len(active)

    @property
    def _may_submit(self) -> bool:
        return time.monotonic() >= self.next_attempt

    def _has_budget(self) -> bool:
        trials, hours = self.study.trials, self.sweep.settings.hours
        began = min((trial.datetime_start for trial in trials if trial.datetime_start), default=None)
        late = hours is not None and began is not None and datetime.now() > began + timedelta(hours=hours)
        return len(trials) < self.sweep.trials and not late

    def _begin(self, trial: FrozenTrial, before: Look, target: Target) -> None:
        if not self._may_submit:
            return
        job = self.sweep.job(trial.number, trial.params)
        try:
            handle = self.jobs.submit(job, target, before)
        except SchedulerError as error:
            self._wait(trial, error)
            return
        self.seen.add(name_of(trial))
        again = f"again, attempt {before.number + 1}" if before.number else "with " + values_of(trial)
        self.say(f"trial {trial.number:3}  begins {again}  {handle}")

    def _wait(self, trial: FrozenTrial, error: SchedulerError) -> None:
        """Postpones a trial that could not be submitted; it does not count as failed.

        Raises:
            InputError: The trial was refused too often.
        """
        name = name_of(trial)
        if isinstance(error, NoRoom):
            self.next_attempt = time.monotonic() + PAUSE_SECONDS
            if name not in self.waiting:
                self.say(f"trial {trial.number:3}  waits until there is room for its job: {error}")
            self.waiting.add(name)
            return
        self.refusals[name] += 1  # a cluster that is away may be back soon
        if self.refusals[name] >= MOST_SUBMISSIONS and not isinstance(error, MaybeSubmitted):
            raise InputError(
                f"{self.sweep.source}trial {trial.number} cannot be submitted: {error}; jobs that run go on, and so"
                " does the sweep when it is run again"
            ) from error
        self.say(f"trial {trial.number:3}  not submitted yet: {error}")

    def _follow(self, trial: FrozenTrial, look: Look, target: Target) -> None:
        """Reports the values of a trial, and stops, ends or restarts it."""
        reached = self._evaluations(trial)
        stop = self.study.report(trial, reached)
        if look.state == AppState.SUCCEEDED:
            self._finish(trial, reached)
        elif STOPPED_EARLY in trial.user_attrs:
            if look.is_active:  # an earlier process was killed before it cancelled the job
                self.jobs.cancel(look)
            else:
                self._end(trial, TrialState.PRUNED, f"stopped early at step {max(reached)}, {self._shown(reached)}")
        elif look.is_active:
            self.seen.add(name_of(trial))
            if stop:
                self.study.note(trial, STOPPED_EARLY, True)
                self.jobs.cancel(look)
        elif look.state == AppState.CANCELLED and self.study.cancelled:
            return
        elif look.state == AppState.CANCELLED and name_of(trial) in self.seen:
            self._end(trial, TrialState.FAIL, "cancelled")
        elif look.state != AppState.CANCELLED and look.number and (why := _hopeless(look)):
            self._end(trial, TrialState.FAIL, why)
        else:
            self._begin(trial, look, target)

    def _finish(self, trial: FrozenTrial, reached: dict[int, float]) -> None:
        if reached:
            self._end(trial, TrialState.COMPLETE, f"done at step {max(reached)}, {self._shown(reached)}", reached)
        else:
            self._end(trial, TrialState.FAIL, f"has no finite {self.sweep.aim} on data.validation")

    def _end(self, trial: FrozenTrial, state: TrialState, why: str, reached: dict[int, float] | None = None) -> None:
        self.study.note(trial, WHY, why)
        self.study.end(trial, state, reached[max(reached)] if reached else None)
        self.say(f"trial {trial.number:3}  {'failed: ' if state == TrialState.FAIL else ''}{why}")

    def _shown(self, reached: dict[int, float]) -> str:
        return f"{self.sweep.aim} {reached[max(reached)]:.5f}"

    def _evaluations(self, trial: FrozenTrial) -> dict[int, float]:
        """Returns the values of the aim by step in the trial's run so far.

        If the run keeps its best checkpoint by the aim, that is the trial's result: then the best value by each step.
        """
        lines = RunDirectory(self.sweep.run_directory(trial.number)).read_records("evaluations.jsonl")
        found = {line["step"]: line.get(self.sweep.aim) for line in lines if line["split"] == "validation"}
        reached = {step: value for step, value in found.items() if value is not None and isfinite(value)}
        if not self.sweep.keeps_best:
            return reached
        best = max if self.sweep.higher else min
        return dict(zip(reached, accumulate(reached.values(), best), strict=True))

    def _check_failures(self) -> None:
        ended = [trial for trial in self.study.trials if trial.state.is_finished()]
        if len(ended) >= FAILED_AT_FIRST and all(trial.state == TrialState.FAIL for trial in ended):
            why = ended[-1].user_attrs.get(WHY, "")
            raise InputError(f"{self.sweep.source}the first {len(ended)} trials have all failed: {why}")


def _hopeless(look: Look) -> str:
    """Returns the reason not to submit a failed or lost job again; empty to submit it."""
    message = look.status.msg if look.status else "gone"
    if look.number < MOST_SUBMISSIONS and not is_wrong_input(message):
        return ""
    return (first_error(look.status) if look.status else "") or message


def name_of(trial: FrozenTrial) -> str:
    """Returns the name of a trial's job in the notes of submissions."""
    return f"trial_{trial.number}"


def values_of(trial: FrozenTrial) -> str:
    """Describes the values of a trial."""
    return "  ".join(f"{key}={shown(value)}" for key, value in trial.params.items())


def shown(value: object) -> str:
    """Returns a value as tables show it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
