"""Tasks with losses of every kind train as float64 arithmetic says, on any number of ranks, and are resumed exactly."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from jobs import config, launch_rounds, losses, numbers_of_ranks, saved_tensors, write_rows
from task_models import TASKS, train_by_hand

from trainer.config.root import Config

ROWS, STEPS = 250, 10  # two and a half epochs, each of whose last batch is short
SHARED = ["smoothed", "product", "classes", "seconds"]  # which Pareto weighs
PLANS = {1: ["table_wise"], 2: ["row_wise"], 4: ["column_wise"]}
KINDS = {
    "fixed": {},
    "batch": {"across": "batch"},
    "uncertainty": {"task_weighting": "uncertainty"},
    "pareto": {"task_weighting": "pareto", "tasks": SHARED},
}
MATRIX = "ranks", numbers_of_ranks


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two binary labels, a class, a number, a user, and weights of which some are 0."""
    folder = tmp_path_factory.mktemp("tasks")
    table = pq.read_table(write_rows(folder / "plain", [ROWS]) / "part-00.parquet")
    random = np.random.default_rng(1)
    columns = {
        "buy": random.integers(0, 2, ROWS).astype(np.float32),
        "kind": random.integers(0, 3, ROWS).astype(np.float32),
        "seconds": random.integers(0, 4, ROWS).astype(np.float32),
        "user": random.integers(0, 3, ROWS),
        "weight": (random.random(ROWS) * (random.random(ROWS) > 0.2)).astype(np.float32),
    }
    for name, column in columns.items():
        table = table.append_column(name, pa.array(column))
    (folder / "rich").mkdir()
    pq.write_table(table, folder / "rich/part.parquet", row_group_size=64)
    return folder / "rich"


def settings(data, ranks=1, tasks=tuple(TASKS), across="lane", task_weighting="fixed", **changes):
    tree = config(data, planner__sharding_types=PLANS[ranks], **{"train__steps": STEPS, **changes})
    tree["data"] |= {
        "labels": ["label", "buy", "kind", "seconds"],
        "numeric_labels": ["kind", "seconds"],
        "groups": ["user", "s1"],
        "weight": "weight",
        "shuffle": False,
    }
    tree["model"] |= {"name": "task_models:Heads", "task_weighting": task_weighting}
    sections = {name: TASKS[name][0] for name in tasks}
    compared = {"jrc", "bpr", "in_batch_softmax"}
    tree["tasks"] = {
        name: task | ({"across": across} if task.get("loss") in compared else {}) for name, task in sections.items()
    }
    return tree


@pytest.fixture(scope="module")
def runs(matrix, data, tmp_path_factory):
    """Every kind on every number of ranks; uncertainty also in other ways that change nothing, and resumed."""
    folder = tmp_path_factory.mktemp("runs")

    def job(name, *arguments, **changes):
        return {"config": settings(data, *arguments, **changes), "out": str(folder / name)}

    rounds = [(ranks, [job(f"{kind}-{ranks}", ranks, **KINDS[kind]) for kind in KINDS]) for ranks in matrix]
    learned = KINDS["uncertainty"]
    rounds[1][1].extend(
        [
            job("parts", 2, **learned, train__micro_batches=4),
            job("scaled", 2, **learned, train__loss_scale={"initial": 4096.0, "growth_interval": 2}),
            job("checked", 2, **learned, train__nonfinite="skip"),
            job("rounded", 2, **learned, train__precision="bf16"),
            job("resumed", 2, **learned, train__steps=3),
            job("resumed", 2, **learned),
        ]
    )
    launch_rounds(rounds, folder)
    return folder


@pytest.fixture(scope="module")
def by_hand(data):
    """The losses of the reference, by kind."""
    curves = {}
    for kind, options in KINDS.items():
        tree = Config.model_validate(settings(data, **options))
        curves[kind] = train_by_hand(data, tree, STEPS, options.get("task_weighting", "fixed"))
    return curves


@pytest.mark.parametrize("kind", KINDS)
def test_training_follows_the_float64_reference(runs, by_hand, kind, ranks):
    assert by_hand[kind][-1] != pytest.approx(by_hand[kind][0], rel=1e-2)
    np.testing.assert_allclose(losses(runs / f"{kind}-{ranks}"), by_hand[kind], rtol=2e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_weights_do_not_depend_on_the_number_of_ranks(runs, kind, ranks):
    np.testing.assert_allclose(losses(runs / f"{kind}-{ranks}"), losses(runs / f"{kind}-1"), rtol=1e-6, atol=0)
    expected, found = saved_tensors(runs / f"{kind}-1", STEPS), saved_tensors(runs / f"{kind}-{ranks}", STEPS)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_global_batch_is_another_unit_than_a_lane(runs):
    assert losses(runs / "batch-1")[0] > losses(runs / "fixed-1")[0]


def test_learned_weights_are_saved(runs):
    variances = saved_tensors(runs / "uncertainty-1", STEPS)["model.losses.weighting.log_variances"]
    assert len(variances) == len(TASKS)
    assert (variances != 0).all()


@pytest.mark.parametrize("name", ["scaled", "checked", "resumed"])
def test_no_bit_differs(runs, name):
    assert losses(runs / name) == losses(runs / "uncertainty-2")
    expected, found = saved_tensors(runs / "uncertainty-2", STEPS), saved_tensors(runs / name, STEPS)
    assert found.keys() == expected.keys()
    for tensor, value in expected.items():
        assert torch.equal(found[tensor], value), tensor


def test_micro_batches_take_the_same_steps(runs):
    np.testing.assert_allclose(losses(runs / "parts"), losses(runs / "uncertainty-2"), rtol=1e-6)


def test_bfloat16_stays_close(runs):
    assert losses(runs / "rounded") != losses(runs / "uncertainty-2")
    np.testing.assert_allclose(losses(runs / "rounded"), losses(runs / "uncertainty-2"), rtol=0.02)
