"""Runs whose tables' updates depend on the steps taken resume bit for bit, with evaluations between, and fine-tune."""

import pytest
import torch
from jobs import config, launch, losses, saved_tensors, write_rows

pytestmark = pytest.mark.more("test_resume.py resumes")

EPOCH = 4  # steps
CASES = {
    "adam": ("row_wise", {"name": "adam", "learning_rate": 0.01, "weight_decay": 0.1}, "fp32"),
    "partial_rowwise_adam": ("column_wise", {"name": "partial_rowwise_adam", "learning_rate": 0.01}, "fp32"),
    "lamb": ("table_wise", {"name": "lamb", "learning_rate": 0.01}, "fp32"),
    "partial_rowwise_lamb": ("grid_shard", {"name": "partial_rowwise_lamb", "learning_rate": 0.01}, "fp32"),
    "lars_sgd": ("table_row_wise", {"name": "lars_sgd", "learning_rate": 1.0}, "fp32"),
    "decayed": ("row_wise", {"name": "rowwise_adagrad", "weight_decay": 0.1, "initial_accumulator": 0.1}, "fp32"),
    "fp16": ("column_wise", {"name": "adam", "learning_rate": 0.01}, "fp16"),
}
BY_TABLE = {
    "s0": {"frozen": True},
    "s1": {"learning_rate": 0.005, "schedule": {"warmup_steps": 8, "decay": "constant"}},
    "s2": {"name": "adagrad", "learning_rate": 0.1},
}


SAMPLED = ["adam", "partial_rowwise_lamb", "decayed", "fp16"]  # two of them with column shards
MATRIX = "case", lambda whole: [*CASES] if whole else SAMPLED


def settings(folder, case, steps, **changes):
    kind, sparse, precision = CASES[case]
    base = {
        "data__validation": [str(folder / "validation")],
        "planner__sharding_types": [kind],
        "model__table_precision": precision,
        "optimizer__sparse": sparse,
        "optimizer__tables": BY_TABLE,
        "optimizer__dense": {"name": "adam", "learning_rate": 0.01},
        "checkpoint__every_steps": 4,
        "train__steps": steps,
    }
    return config(folder / "data", **base | changes)


@pytest.fixture(scope="module")
def runs(matrix, tmp_path_factory):
    """Baselines of 12 steps with evaluations, of 12 without, and runs of 5 that are resumed to 12."""
    folder = tmp_path_factory.mktemp("resume-tables")
    write_rows(folder / "data", [200, 56])
    write_rows(folder / "validation", [70], seed=1)
    evaluated = {"evaluate__every_steps": 3}
    jobs = [
        job
        for case in matrix
        for job in (
            {"config": settings(folder, case, 12, **evaluated), "out": str(folder / f"{case}-baseline")},
            {"config": settings(folder, case, 5, **evaluated), "out": str(folder / f"{case}-resumed")},
            {"config": settings(folder, case, 12, **evaluated), "out": str(folder / f"{case}-resumed")},
        )
    ]
    jobs += [{"config": settings(folder, "adam", 12), "out": str(folder / "adam-unevaluated")}]
    frozen = {"s0": {"frozen": True}}
    for name, steps, changes in (
        ("first", EPOCH, {}),
        ("both", 2 * EPOCH, {}),
        ("second", EPOCH, {"finetune__checkpoint": str(folder / "first")}),
        ("frozen", EPOCH, {"finetune__checkpoint": str(folder / "first"), "optimizer__tables": frozen}),
    ):
        tree = settings(folder, "adam", steps, **{"optimizer__tables": {}, "data__shuffle": False} | changes)
        jobs.append({"config": tree, "out": str(folder / name)})
    launch(jobs, 2, folder)
    return folder


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        assert found[name].dtype == value.dtype, name


def test_a_resumed_run_ends_bit_for_bit_as_its_baseline(runs, case):
    baseline, resumed = runs / f"{case}-baseline", runs / f"{case}-resumed"
    assert losses(resumed) == losses(baseline)
    expected = saved_tensors(baseline, 12)
    assert any(name.startswith("table.s3.") for name in expected)
    assert_same(saved_tensors(resumed, 12), expected)


def test_evaluations_change_nothing(runs):
    assert_same(saved_tensors(runs / "adam-unevaluated", 12), saved_tensors(runs / "adam-baseline", 12))


def test_tables_of_half_precision_have_float32_state(runs):
    tensors = saved_tensors(runs / "fp16-baseline", 12)
    tables = {name: value.dtype for name, value in tensors.items() if "embedding_bags" in name}
    assert set(tables.values()) == {torch.float16}
    assert {value.dtype for name, value in tensors.items() if name not in tables} == {torch.float32}


def test_fine_tuning_goes_on_with_state_and_steps_taken(runs):
    """A second epoch in a run of its own, whose samples come in the same order, ends as two epochs in one run."""
    assert_same(saved_tensors(runs / "second", EPOCH), saved_tensors(runs / "both", 2 * EPOCH))


def test_fine_tuning_can_freeze_a_table_that_was_trained(runs):
    first, frozen = saved_tensors(runs / "first", EPOCH), saved_tensors(runs / "frozen", EPOCH)
    name = next(name for name in first if name.endswith("embedding_bags.s0.weight"))
    assert torch.equal(frozen[name], first[name])
    assert first.keys() - frozen.keys() == {"table.s0.momentum1", "table.s0.exp_avg_sq"}
