"""A resumed run keeps its plan, as long as nothing that decides it has changed."""

import json

import pytest
from command import run_trainer
from jobs import config, write_rows

from trainer.config.root import Config, to_toml

KEPT = "the plan is that of the run so far, as nothing that decides it has changed"


@pytest.fixture
def run(tmp_path):
    """Trains two steps, and returns a function that resumes the run for two more and returns what it printed."""
    settings = tmp_path / "settings.toml"
    settings.write_text(to_toml(Config.model_validate(config(write_rows(tmp_path / "data", [200]), train__steps=2))))
    steps = iter(range(2, 100, 2))

    def train(*flags):
        done = run_trainer("train", settings, "--out", tmp_path / "run", "--train.steps", next(steps), *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert KEPT not in train()
    return train


def plan_and_what_decided_it(tmp_path):
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    return (tmp_path / "run" / "plan.json").read_text(), facts["plan"], facts["planned_for"]


def test_a_plan_is_kept_over_resumes(run, tmp_path):
    before = plan_and_what_decided_it(tmp_path)
    for flags in ([], ["--report.interval-steps", "1"]):
        assert KEPT in run(*flags)
        assert plan_and_what_decided_it(tmp_path) == before


@pytest.mark.parametrize(
    "flags",
    [
        ["--planner.slower-for-memory", "0.1"],
        ["--planner.host-memory-gib", "3"],
        ["--data.sparse.s0.hotness", "3"],
    ],
)
def test_a_run_is_planned_anew_after_a_change(run, flags):
    assert KEPT not in run(*flags)
    assert KEPT in run(*flags)


def test_a_plan_that_was_changed_by_hand_is_not_kept(run, tmp_path):
    file = tmp_path / "run" / "plan.json"
    plan = json.loads(file.read_text())
    changed = json.loads(file.read_text())
    for table in next(iter(changed["modules"].values())).values():
        table["sharding_type"], table["compute_kernel"] = "data_parallel", "dense"
    file.write_text(json.dumps(changed))
    assert KEPT not in run()
    assert json.loads(file.read_text()) == plan


def test_a_plan_that_the_configuration_names_is_not_compared(run, tmp_path):
    copy = tmp_path / "copy.json"
    copy.write_text((tmp_path / "run" / "plan.json").read_text())
    assert KEPT not in run("--planner.plan", str(copy))
    assert plan_and_what_decided_it(tmp_path)[2] == ""
    assert KEPT not in run()
