"""Sweeps on `local_cwd`: budgets, early stops, the best, and what happens when something is killed."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
import tomllib
from contextlib import suppress
from pathlib import Path

import curve
import optuna
import pytest
import tomli_w
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState
from shells import wait_for

BEGINS = re.compile(r"trial +(\d+)  begins with optimizer.dense.learning_rate=(\S+)  (\S+)")


class Sweep:
    """A sweep over the learning rate of a stand-in for training, in a shell of the user's."""

    def __init__(self, torchx, **settings):
        self.torchx, self.folder = torchx, torchx.home / "elsewhere"
        self.folder.mkdir()
        shutil.copy(curve.__file__, self.folder)
        self.out = self.folder / "out"
        self.tree = {
            "out": "out",
            "component": "curve.py:train",
            "min_steps": 10,
            "arguments": {"config": "movielens"},
            "space": {"optimizer": {"dense": {"learning_rate": {"range": [0.0001, 1.0]}}}},
        }
        self.write(**settings)

    def write(self, **settings):
        self.tree |= settings
        (self.folder / "s.toml").write_text(tomli_w.dumps(self.tree))

    def __call__(self, command, *words, code=0):
        done = self.torchx("sweep", command, "s.toml", *words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    def open(self):
        return self.torchx.open("sweep", "run", "s.toml", cwd=self.folder)

    @property
    def trials(self):
        storage = JournalStorage(JournalFileBackend(str(self.out / "optuna.log")))
        return optuna.load_study(study_name="sweep", storage=storage).trials

    def states(self):
        return [trial.state for trial in self.trials]

    def evaluations(self, number):
        file = self.out / f"trials/{number}/evaluations.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def jobs(self):
        return [json.loads(file.read_text()) for file in sorted((self.out / "jobs").iterdir())]

    def active(self):
        lines = self.torchx("list", "-s", "local_cwd").stdout.splitlines()
        return [line.split()[0] for line in lines if re.search(r"(PENDING|RUNNING)\b", line)]


def test_a_grid_is_run_whole_and_the_best_is_ready_to_run(torchx):
    rates = [0.1, 0.4, 0.9]
    space = {"optimizer": {"dense": {"learning_rate": rates}}}
    arguments = {"config": "movielens", "args": ["--checkpoint.keep.best", "auc"]}
    sweep = Sweep(torchx, sampler="grid", pruner="none", at_once=3, space=space, arguments=arguments)
    said = sweep("run")
    assert sorted(float(rate) for _, rate, _ in BEGINS.findall(said)) == rates
    assert sweep.states() == [TrialState.COMPLETE] * 3
    for trial in sweep.trials:
        rate = trial.params["optimizer.dense.learning_rate"]
        assert trial.value == max(curve.value(rate, step) for step in range(0, curve.STEPS + 1, curve.EVERY))
    best = tomllib.loads((sweep.out / "best.toml").read_text())
    assert best["optimizer"]["dense"]["learning_rate"] == 0.4
    shown = said[said.index("trial    ") :]
    assert [float(value) for value in re.findall(r"done +([\d.]+)", shown)] == [0.9, 0.6, 0.6]
    assert "trained 270 steps, of 270 with no trial stopped early" in said
    assert sweep("status").splitlines() == shown.splitlines()[:5]
    # A sweep that is over stays so.
    assert "begins" not in sweep("run")
    assert len(sweep.jobs()) == 3


def test_a_configuration_is_tuned_from_its_own_values_on(torchx):
    sweep = Sweep(torchx)
    tree = {"data": {"train": ["a"], "validation": ["b"], "dense": {"d": {}}, "sparse": {"s": {"rows": 9}}}}
    (sweep.folder / "c.toml").write_text(tomli_w.dumps(tree | {"evaluate": {"every_steps": 10}}))
    words = ("tune", "c.toml", "--out", "out", "--trials", "4", "--component", "curve.py:train")
    done = torchx("sweep", *words)
    assert done.returncode == 0, done.stderr
    first, *others = sweep.trials
    rate = "optimizer.dense.learning_rate"
    assert (first.state, first.params[rate], first.params["model.embedding_dim"]) == (TrialState.COMPLETE, 0.02, 64)
    assert first.value == max(curve.value(0.02, step) for step in range(0, curve.STEPS + 1, curve.EVERY))
    best = max((one for one in sweep.trials if one.state == TrialState.COMPLETE), key=lambda trial: trial.value)
    assert (
        tomllib.loads((sweep.out / "best.toml").read_text())["optimizer"]["dense"]["learning_rate"] == best.params[rate]
    )
    assert len(others) == 3
    was = f"better than before  auc {first.value:.5f} as it was, {best.value:.5f} now"
    assert (was if best.number else "better than before  none: as it was, ") in done.stdout
    assert "Next:  torchx run curve.py:train --config out/best.toml --out out-best" in done.stdout
    assert "begins" not in torchx("sweep", *words).stdout  # a search that is over stays so


def test_a_directory_of_something_else_is_refused(torchx):
    sweep = Sweep(torchx)
    assert "no trial has begun in out" in sweep("status", code=2)
    assert not sweep.out.exists()
    sweep.out.mkdir()
    (sweep.out / "best.toml").write_text("of somebody else")
    assert "out is 'out', which has other files; name a new directory" in sweep("run", code=2)
    assert (sweep.out / "best.toml").read_text() == "of somebody else"
    assert sweep.active() == []


def test_trials_are_stopped_early_and_optuna_reads_the_journal(torchx):
    sweep = Sweep(torchx, trials=8, at_once=4, arguments={"config": "movielens", "seconds": 0.8})
    said = sweep("run")
    states = sweep.states()
    assert (len(states), set(states)) == (8, {TrialState.COMPLETE, TrialState.PRUNED})
    done, all_ = map(int, re.search(r"trained (\d+) steps, of (\d+) with no", said).groups())
    assert all_ == 8 * curve.STEPS
    assert done == sum(sweep.evaluations(number)[-1]["step"] for number in range(8)) < all_
    for trial in sweep.trials:
        if trial.state == TrialState.COMPLETE:
            assert trial.value == curve.value(trial.params["optimizer.dense.learning_rate"], curve.STEPS)
    best = max((trial for trial in sweep.trials if trial.state == TrialState.COMPLETE), key=lambda trial: trial.value)
    assert f"its run             out/trials/{best.number}" in said
    journal = ("--storage", str(sweep.out / "optuna.log"), "--storage-class", "JournalFileBackend")
    listed = subprocess.run(["optuna", "studies", *journal, "-f", "json"], capture_output=True, text=True, check=True)
    assert json.loads(listed.stdout)[0]["name"] == "sweep"
    assert "out/sweep.html" in said


@pytest.mark.more("a rare fault")
def test_what_a_killed_sweep_leaves_of_its_journal_holds_up_nobody(torchx):
    sweep = Sweep(torchx, trials=1, pruner="none")
    sweep("run")
    (sweep.out / "optuna.log.lock").symlink_to("out/optuna.log")  # Optuna's own lock, as a killed process leaves it
    with (sweep.out / "optuna.log").open("a") as journal:
        journal.write('{"op_code":')
    sweep.write(trials=2)
    assert "trial   1  done" in sweep("run")
    assert sweep.states() == [TrialState.COMPLETE] * 2
    assert len(sweep("status").splitlines()) == 4


def test_a_sweep_that_is_cancelled_goes_on(torchx):
    sweep = Sweep(torchx, trials=2, pruner="none", arguments={"config": "movielens", "seconds": 1.0})
    shell = sweep.open()
    wait_for(lambda: all((sweep.out / f"trials/{number}/evaluations.jsonl").exists() for number in (0, 1)))
    assert "another `torchx sweep run` follows the trials in out" in sweep("run", code=2)
    assert sweep("cancel") == "cancelled 2 trials; torchx sweep run s.toml goes on with them\n"
    said, _ = shell.communicate(timeout=600)
    assert (shell.returncode, said.count("done")) == (1, 0)
    wait_for(lambda: not sweep.active())
    half = [sweep.evaluations(number) for number in (0, 1)]
    assert all(lines[-1]["step"] < curve.STEPS for lines in half)
    sweep.write(arguments={"config": "movielens", "seconds": 0.01})
    assert sweep("run").count("begins again, attempt 2") == 2
    for number in (0, 1):
        assert sweep.evaluations(number)[: len(half[number])] == half[number]
        assert [line["step"] for line in sweep.evaluations(number)] == [*range(10, 91, 10)]


@pytest.mark.more("a detail")
def test_a_trial_that_is_cancelled_by_hand_is_not_begun_again(torchx):
    sweep = Sweep(torchx, trials=2, at_once=1, pruner="none", arguments={"config": "movielens", "seconds": 0.6})
    shell = sweep.open()
    assert shell.stdout
    handle = BEGINS.search(shell.stdout.readline())[3]
    wait_for(lambda: (sweep.out / "trials/0/evaluations.jsonl").exists())
    torchx("cancel", handle)
    said, _ = shell.communicate(timeout=600)
    assert shell.returncode == 0
    assert "trial   0  failed: cancelled" in said
    assert sweep.states() == [TrialState.FAIL, TrialState.COMPLETE]


@pytest.mark.more("a detail")
def test_a_sweep_whose_first_trials_all_fail_ends(torchx):
    sweep = Sweep(torchx, trials=20, at_once=3, component="fails.py:train")
    failing = (sweep.folder / "curve.py").read_text().replace('"python", args=words', '"false"')
    (sweep.folder / "fails.py").write_text(failing)
    said = sweep("run", code=2)
    assert re.search(r"error: sweep 's.toml': the first 3 trials have all failed: \S+/0 ended with exit code 1$", said)
    assert len(sweep.jobs()) == 9  # each was submitted three times


@pytest.mark.more("random moments")
@pytest.mark.sample(1)
@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_killed_no_trial_begins_from_scratch(torchx, seed):
    dice = random.Random(seed)
    sweep = Sweep(torchx, trials=6, at_once=3, seed=seed, arguments={"config": "movielens", "seconds": 0.3})
    for _ in range(5):
        shell = sweep.open()
        time.sleep(dice.uniform(1, 4))
        os.killpg(shell.pid, signal.SIGKILL)
        for handle in sweep.active():
            supervisor = torchx.progress(handle)["supervisor"]
            if dice.random() < 0.2 and supervisor:
                with suppress(ProcessLookupError):
                    os.kill(supervisor, signal.SIGKILL)
    sweep("run")
    ended = [trial for trial in sweep.trials if trial.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    assert len(ended) >= 5  # one may have had its supervisor killed three times
    for trial in ended:
        steps = [line["step"] for line in sweep.evaluations(trial.number)]
        assert steps == [*range(10, steps[-1] + 1, 10)]
        starts = [int(line) for line in Path(sweep.out / f"trials/{trial.number}/starts").read_text().split()]
        assert starts == sorted(starts)
    assert sweep.active() == []
