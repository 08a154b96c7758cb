"""The actions of the command `torchx sweep`."""

import argparse
import fcntl
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optuna.trial import FrozenTrial, TrialState
from tabulate import tabulate
from torchx.runner import Runner, get_runner
from torchx.runner.config import load_sections
from torchx.schedulers import get_scheduler_factories

from components.cli.defaults import check_sections
from components.cli.run import hide_credentials
from torchx_recsys.pipelines.jobs import Jobs, Target
from torchx_recsys.pipelines.record import Record
from torchx_recsys.sweeps.file import Sweep, read_sweep
from torchx_recsys.sweeps.page import write_page
from torchx_recsys.sweeps.study import JOURNAL, LOCK, WHY, Study, drop_torn_line, last_value
from torchx_recsys.sweeps.trials import Course, name_of, shown
from torchx_recsys.sweeps.tune import write_sweep
from trainer.config.root import to_toml
from trainer.core.errors import InputError
from trainer.core.outcome import FAILED

STATES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "stopped early", TrialState.FAIL: "failed"}


def tune(args: argparse.Namespace) -> None:
    """Runs trials of a configuration over the ready-made space, whose sweep file it writes."""
    args.file = write_sweep(args, _say)
    run(args)


def run(args: argparse.Namespace) -> None:
    """Runs trials, or shows the request of the first trial in a dry run."""
    check_sections(get_scheduler_factories())
    sweep = read_sweep(args.file)
    with get_runner(component_defaults=load_sections(prefix="component")) as runner:
        target = Target.of(args, [sweep.settings.component], runner)
        if args.dryrun:
            hide_credentials(runner)
        first = {key: dimension.ends[0] for key, dimension in sweep.dimensions.items()}
        request = target.dry_run(sweep.job(0, first))
        if args.dryrun:
            print(request)
            return
        with _alone(sweep):
            drop_torn_line(sweep)
            study = Study(sweep)
            course = _course(sweep, study, runner)
            try:
                whole = course.run(target)
            except KeyboardInterrupt:
                _say(f"the jobs go on; again: torchx sweep run {args.file}; end: torchx sweep cancel {args.file}")
                raise
            _finish(args, sweep, study)
            if not whole or study.best() is None:
                sys.exit(FAILED)


@contextmanager
def _alone(sweep: Sweep) -> Iterator[None]:
    """Refuses a second `torchx sweep run` in the same directory, which would begin trials twice."""
    folder = Path(sweep.settings.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / LOCK).open("w")
    except OSError as error:
        raise InputError(f"{sweep.source}out is '{folder}', which cannot be written: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{sweep.source}another `torchx sweep run` follows the trials in {folder}") from error
        yield


def _course(sweep: Sweep, study: Study, runner: Runner) -> Course:
    return Course(sweep, study, Jobs(_record(sweep), runner), _say)


def _record(sweep: Sweep) -> Record:
    return Record(sweep.settings.out, "jobs", "sweep")


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", flush=True)


def _finish(args: argparse.Namespace, sweep: Sweep, study: Study) -> None:
    """Prints the trials, and writes the page and the best configuration."""
    headers, rows = _rows(sweep, study)
    _print_table(headers, rows, study)
    print(_saved(study))
    folder = Path(sweep.settings.out)
    write_page(folder / "sweep.html", sweep.aim, headers, rows, study)
    print(f"page                {folder / 'sweep.html'}")
    if best := study.best():
        (folder / "best.toml").write_text(to_toml(sweep.configured(best.params)))
        print(f"best configuration  {folder / 'best.toml'}")
        print(f"its run             {sweep.run_directory(best.number)}")
        if sweep.start:
            print(f"better than before  {_gain(sweep, study, best)}")
        words = ["torchx", "run", sweep.settings.component, "--config", f"{folder / 'best.toml'}"]
        print(f"\nNext:  {shlex.join([*words, '--out', f'{folder}-best'])}")


def _gain(sweep: Sweep, study: Study, best: FrozenTrial) -> str:
    """Describes how much better the best trial is than the first, which had the values of the file."""
    before, after = (
        "unknown" if (value := last_value(trial)) is None else f"{value:.5f}" for trial in (study.trials[0], best)
    )
    if not best.number:
        return f"none: as it was, the configuration has {sweep.aim} {before}"
    return f"{sweep.aim} {before} as it was, {after} now"


def _saved(study: Study) -> str:
    """Describes how many steps were trained, compared with training all trials to their end."""
    steps = [trial.last_step or 0 for trial in study.trials if trial.state != TrialState.FAIL]
    whole = max((trial.last_step or 0 for trial in study.trials if trial.state == TrialState.COMPLETE), default=0)
    if not whole:
        return "no trial was trained to its end"
    return f"trained {sum(steps):,} steps, of {whole * len(steps):,} with no trial stopped early"


def _rows(sweep: Sweep, study: Study) -> tuple[list[str], list[list[str]]]:
    """Returns the rows of the table of trials, the best first."""
    keys = [*sweep.dimensions]
    trials = study.ranked()
    jobs = _record(sweep).newest({name_of(trial) for trial in trials})
    rows = [
        [
            str(trial.number),
            STATES.get(trial.state, "runs"),
            "" if (value := last_value(trial)) is None else f"{value:.5f}",
            str(trial.last_step or ""),
            *(shown(trial.params.get(key, "")) for key in keys),
            jobs[name_of(trial)].handle if name_of(trial) in jobs else "",
        ]
        for trial in trials
    ]
    return ["trial", "", sweep.aim, "step", *keys, "job"], rows


def _print_table(headers: list[str], rows: list[list[str]], study: Study) -> None:
    """Prints the table of trials, and below it the reasons of failures."""
    print(tabulate(rows, headers, disable_numparse=True))
    reasons: dict[str, list[str]] = {}
    for trial in study.trials:
        if trial.state == TrialState.FAIL:
            reasons.setdefault(trial.user_attrs.get(WHY, ""), []).append(str(trial.number))
    for why, numbers in reasons.items():
        print(f"failed: {', '.join(numbers)}: {why}")


def status(args: argparse.Namespace) -> None:
    """Shows the trials."""
    sweep = _begun(args.file)
    study = Study(sweep)
    _print_table(*_rows(sweep, study), study)


def cancel(args: argparse.Namespace) -> None:
    """Cancels the jobs of all trials, and the sweep."""
    sweep = _begun(args.file)
    with get_runner() as runner:
        count = _course(sweep, Study(sweep), runner).cancel()
    print(f"cancelled {count} trials; torchx sweep run {args.file} goes on with them")


def _begun(file: str) -> Sweep:
    """Reads the file of a sweep that has begun."""
    sweep = read_sweep(file)
    if not Path(sweep.settings.out, JOURNAL).exists():
        raise InputError(f"{sweep.source}no trial has begun in {sweep.settings.out}; `torchx sweep run` begins them")
    return sweep
