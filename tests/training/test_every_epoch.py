"""Saves and evaluations that are counted in epochs, and evaluations at saves."""

import json
import shutil

import pytest
import torch
from jobs import config, launch_rounds, losses, saved_tensors, write_rows
from trainer_process import committed

from trainer.config.root import Config, without_replaced
from trainer.core.section import validate

ROWS, BATCH = [200, 10, 54], 64
EPOCH = 5  # steps, of which the last is short


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of three epochs with saves at the end of each; two that were killed in the second go on."""
    folder = tmp_path_factory.mktemp("epochs")
    write_rows(folder / "data", ROWS)
    write_rows(folder / "validation", [90], seed=3)

    def settings(**changes):
        ends = {"train__epochs": 3, "train__steps": None, "checkpoint__keep__newest": 9}
        validation = {"data__validation": [str(folder / "validation")]}
        return config(folder / "data", **ends | validation | changes)

    jobs = {
        "saves": settings(checkpoint__every_epochs=1, evaluate__at_saves=True),
        "evaluations": settings(
            train__epochs=None, train__steps=13, checkpoint__every_epochs=1, evaluate__every_epochs=2
        ),
        "steps": settings(checkpoint__every_steps=4, evaluate={"at_saves": True, "first_after": 5 * BATCH}),
        "early": settings(
            checkpoint__every_epochs=1,
            evaluate__at_saves=True,
            train__stop_early={"metric": "auc", "patience": 1, "min_change": 0.9},
        ),
    }
    trained = [{"config": each, "out": str(folder / name)} for name, each in jobs.items()]
    launch_rounds([(2, trained)], folder)
    for name in ("killed", "unevaluated", "alone"):
        shutil.copytree(folder / "saves", folder / name)
        for step in (2 * EPOCH, 3 * EPOCH):
            shutil.rmtree(folder / f"{name}/checkpoints/step-{step:09d}")
    (folder / "unevaluated/evaluations.jsonl").write_text("")  # killed in the evaluation
    again = {name: {"config": jobs["saves"], "out": str(folder / name)} for name in ("killed", "unevaluated", "alone")}
    launch_rounds([(2, [again["killed"], again["unevaluated"]]), (1, [again["alone"]])], folder)
    return folder


def evaluations(out):
    return [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("name", "saved", "evaluated"),
    [
        ("saves", [EPOCH, 2 * EPOCH, 3 * EPOCH], [EPOCH, 2 * EPOCH, 3 * EPOCH]),
        ("evaluations", [EPOCH, 2 * EPOCH, 13], [2 * EPOCH, 13]),  # and at the end
        ("steps", [4, 8, 12, 15], [8, 12, 15]),
        ("early", [EPOCH, 2 * EPOCH], [EPOCH, 2 * EPOCH]),
    ],
)
def test_they_follow_the_ends_of_epochs(runs, name, saved, evaluated):
    assert committed(runs / name) == saved
    assert [line["step"] for line in evaluations(runs / name)] == evaluated


@pytest.mark.parametrize("name", ["killed", "unevaluated"])
def test_a_killed_run_goes_on_as_if_undisturbed(runs, name):
    assert evaluations(runs / name) == evaluations(runs / "saves")
    assert committed(runs / name) == committed(runs / "saves")
    straight, other = saved_tensors(runs / "saves", 3 * EPOCH), saved_tensors(runs / name, 3 * EPOCH)
    assert all(torch.equal(value, other[key]) for key, value in straight.items())


def test_on_another_number_of_ranks_they_follow_the_same_steps(runs):
    assert committed(runs / "alone") == committed(runs / "saves")
    assert losses(runs / "alone") == pytest.approx(losses(runs / "saves"), rel=1e-5)
    for here, there in zip(evaluations(runs / "alone"), evaluations(runs / "saves"), strict=True):
        assert here["step"] == there["step"]
        assert here["auc"] == pytest.approx(there["auc"], abs=1e-6)


def test_each_key_takes_the_place_of_the_others():
    base = {"every_steps": 80, "every_samples": 0, "every_epochs": 0, "at_saves": False}
    for given in ({"every_epochs": 1}, {"at_saves": True}, {"every_samples": 9}):
        evaluate = validate(Config, {"evaluate": without_replaced(base, given) | given}, lambda _: "").evaluate
        assert (evaluate.every_steps, evaluate.every_epochs) == (0, given.get("every_epochs", 0))
    kept = without_replaced(base, {"at_saves": False})  # which replaces nothing
    assert kept["every_steps"] == 80
