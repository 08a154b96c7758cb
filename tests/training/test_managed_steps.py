"""Managed ids with microbatches, with steps that are skipped, and with jobs that are killed."""

import numpy as np
import pytest
import torch
from command import write_config
from jobs import launch_rounds, losses, saved_tensors
from managed import rows_of_ids, settings, with_labels, write_ids
from test_chaos import evaluations
from test_chaos_models import Job

from trainer.config.model import TableInit
from trainer.models.table_init import initial_rows

pytestmark = pytest.mark.more("test_managed_ids.py has plain steps")

BAD_ROW = 200  # of 256. Unshuffled, in 8 lanes of 32 rows and 4 steps an epoch, it is in the second step.
BAD_STEPS = {2, 6}
STEPS = 8
INIT = TableInit(distribution="normal", std=0.02)
SKIPPING = {"train__nonfinite": "skip", "model__loss": "custom:infinite_for_half", "data__shuffle": False}
EVERY_STEP = {"checkpoint__every_steps": 1, "checkpoint__keep": {"newest": STEPS}}
TABLES = ("ids", "s2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """`bad`, rows of which `custom:infinite_for_half` makes one infinite, and `good`, the same with another label."""
    folder = tmp_path_factory.mktemp("managed-steps")
    rows = write_ids(folder / "rows")
    with_labels(rows, folder / "bad", {BAD_ROW: 0.5})
    with_labels(rows, folder / "good", {BAD_ROW: 1.0})
    return folder


@pytest.fixture(scope="module")
def runs(folder):
    """Whole batches and slices of them, on 1 and 2 ranks, and runs that skip steps or have no reason to."""

    def job(name, data, **changes):
        return {
            "config": settings(
                folder / data, train__steps=STEPS, model__init=INIT.model_dump(exclude_defaults=True), **changes
            ),
            "out": str(folder / name),
        }

    skipping = SKIPPING | EVERY_STEP
    alone = [
        job("whole", "good"),
        job("parts", "good", train__micro_batches=4),
        job("finite", "good", **skipping),
        job("skipped-1", "bad", **skipping),
    ]
    both = [
        job("parts-2", "good", train__micro_batches=2),
        job("skipped-2", "bad", train__micro_batches=2, **skipping),
    ]
    launch_rounds([(1, alone), (2, both)], folder)
    return folder


@pytest.mark.parametrize("name", ["parts", "parts-2"])
def test_slices_take_the_steps_of_the_whole(runs, name):
    np.testing.assert_allclose(losses(runs / name), losses(runs / "whole"), rtol=1e-5)
    expected, found = saved_tensors(runs / "whole", STEPS), saved_tensors(runs / name, STEPS)
    assert all(torch.equal(found[key], value) for key, value in rows_of_ids(expected).items())
    assert all(expected[f"managed.{table}.totals"][1] > 0 for table in TABLES)  # rows were taken
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.parametrize("name", ["skipped-1", "skipped-2"])
def test_a_skipped_step_gives_ids_their_rows_all_the_same(runs, name):
    assert {step for step, loss in enumerate(losses(runs / name), 1) if loss is None} == BAD_STEPS
    for step in range(1, STEPS + 1):
        expected, found = saved_tensors(runs / "finite", step), saved_tensors(runs / name, step)
        assert all(torch.equal(found[key], value) for key, value in rows_of_ids(expected).items())


@pytest.mark.parametrize("name", ["skipped-1", "skipped-2"])
@pytest.mark.parametrize("step", sorted(BAD_STEPS))
def test_a_skipped_step_changes_nothing_but_the_rows_of_new_ids(runs, name, step):
    before, after = saved_tensors(runs / name, step - 1), saved_tensors(runs / name, step)
    taken = {table: taken_rows(before, after, table) for table in TABLES}
    assert any(len(rows) for rows in taken.values())
    for key in before.keys() - rows_of_ids(before).keys():
        table = next((table for table in TABLES if table in key.split(".")), None)
        changed = (before[key] != after[key]).reshape(len(before[key]) if before[key].ndim else 1, -1).any(1).nonzero()
        assert set(changed[:, 0].tolist()) <= set(taken[table].tolist() if table else ()), key
    for table, rows in taken.items():
        weight = after[f"model.model.sparse_arch.embedding_bag_collection.embedding_bags.{table}.weight"]
        assert torch.equal(
            weight[rows], initial_rows(rows, torch.arange(16), weight.shape, table, 0, step=step, init=INIT)
        )


def taken_rows(before, after, table):
    had, has = (tensors[f"managed.{table}.ids"] for tensors in (before, after))
    return ((had != has) & (had >= 0)).nonzero()[:, 0]


def test_a_killed_run_ends_bit_for_bit_as_its_baseline(folder, tmp_path):
    steps = 24
    tree = settings(
        folder / "bad",
        train__steps=steps,
        train__micro_batches=2,
        data__validation=[str(folder / "good")],
        evaluate__every_steps=6,
        checkpoint__every_steps=3,
        **SKIPPING,
    )
    file = write_config(tmp_path / "config.toml", tree)
    baseline = Job(file, tmp_path / "baseline", 0).finish(0)
    job = Job(file, tmp_path / "interrupted", 0).finish(3)
    assert job.interrupted > 0
    assert losses(job.out) == losses(baseline.out)
    np.testing.assert_equal(evaluations(job.out), evaluations(baseline.out))
    expected, found = saved_tensors(baseline.out, steps), saved_tensors(job.out, steps)
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []
