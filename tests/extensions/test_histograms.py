"""Histograms and scalars in TensorBoard, against the weights in checkpoints."""

import numpy as np
import pytest
import torch
from jobs import config, launch_rounds, saved_tensors
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trainer.core.distributed import process_group
from trainer.extensions.histograms import BINS, histograms_of

pytestmark = pytest.mark.more("test_watchers.py is called in every moment")

KINDS = ["table_wise", "row_wise", "column_wise", "table_row_wise", "grid_shard", "data_parallel"]
STEPS, DENSE_RATE = 6, 0.1
WARM_UP = {"warmup_steps": 4}


def settings(rows, kind, **changes):
    planner = {"mode": "data_parallel"} if kind == "data_parallel" else {"sharding_types": [kind]}
    return config(
        rows,
        planner=planner | {"min_columns": 8},
        train__steps=STEPS,
        checkpoint={"every_steps": 1, "keep": {"newest": STEPS}},
        report={"interval_steps": 2, "histograms_every_steps": 3},
        optimizer__sparse__schedule=WARM_UP,
        **changes,
    )


@pytest.fixture(scope="module")
def boards(rows, tmp_path_factory):
    """TensorBoard's files of a run on two ranks under each plan, and of one that learns nothing on one rank."""
    folder = tmp_path_factory.mktemp("histograms")
    still = {"optimizer__sparse__learning_rate": 0.0, "optimizer__dense__learning_rate": 0.0}
    jobs = [{"config": settings(rows, kind), "out": str(folder / kind)} for kind in KINDS]
    unmoved = [{"config": settings(rows, kind, **still), "out": str(folder / f"still-{kind}")} for kind in KINDS]
    alone = [{"config": settings(rows, "row_wise", **still), "out": str(folder / "alone")}]
    launch_rounds([(2, jobs + unmoved), (1, alone)], folder)
    return {
        run.name: (run, EventAccumulator(str(run / "tensorboard"), {"histograms": 0, "scalars": 0}).Reload())
        for run in folder.iterdir()
        if run.is_dir()
    }


def histograms(board):
    """Each weight's histograms by step: sums, edges and counts."""
    return {
        tag: {event.step: event.histogram_value for event in board.Histograms(tag)}
        for tag in board.Tags()["histograms"]
    }


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_those_of_the_whole_weights_in_the_checkpoint(boards, kind):
    run, board = boards[kind]
    found = histograms(board)
    for step in (3, 6):
        weights = {name: value for name, value in saved_tensors(run, step).items() if name.startswith("model.")}
        assert len(found) == len(weights)
        for name, value in weights.items():
            values = value.double().flatten().numpy()
            table = name.split(".")[-2]
            drawn = found[f"tables/{table}" if "embedding_bags" in name else name.replace("model.", "weights/", 1)]
            assert drawn.keys() == {3, 6}
            one = drawn[step]
            assert one.num == len(values)
            assert (one.sum, one.sum_squares) == pytest.approx(
                (values.sum(), np.square(values).sum()), rel=1e-9, abs=1e-9
            )
            edges = np.array([one.min, *one.bucket_limit])
            below = np.searchsorted(np.sort(values), edges[1:-1])
            # Bins are found in float32, which can put values at an edge on its other side.
            assert np.abs(np.cumsum(one.bucket)[:-1] - below).max() <= max(1, len(values) // 500)


@pytest.mark.parametrize("name", [*(f"still-{kind}" for kind in KINDS[1:]), "alone"])
def test_the_same_weights_have_the_same_histograms_under_any_plan(boards, name):
    expected, found = (histograms(boards[run][1]) for run in ("still-table_wise", name))
    assert found.keys() == expected.keys()
    for tag, steps in expected.items():
        for step, one in steps.items():
            assert (found[tag][step].bucket, found[tag][step].bucket_limit) == (one.bucket, one.bucket_limit)


def test_rates_are_those_of_the_step(boards):
    board = boards["row_wise"][1]
    assert [(event.step, event.value) for event in board.Scalars("rate/dense")] == [
        (step, pytest.approx(DENSE_RATE)) for step in (2, 4, 6)
    ]
    assert [(event.step, event.value) for event in board.Scalars("rate/sparse")] == [
        (step, pytest.approx(0.5 * min(1, step / 4))) for step in (2, 4, 6)
    ]


@pytest.mark.parametrize("kind", ["table_wise", "data_parallel"])
def test_the_gradient_norm_is_that_of_the_global_batch(boards, kind):
    """SGD moves each weight by the rate times its gradient."""
    run, board = boards[kind]
    for event in board.Scalars("train/gradient_norm"):
        before, after = (saved_tensors(run, step) for step in (event.step - 1, event.step))
        dense = [name for name in after if name.startswith("model.") and "embedding_bags" not in name]
        moved = torch.cat([(before[name].double() - after[name].double()).flatten() for name in dense])
        assert event.value == pytest.approx(moved.norm().item() / DENSE_RATE, rel=1e-4)


def test_weights_that_are_not_finite_are_left_out_and_equal_ones_are_drawn():
    with process_group() as context:
        weights = {
            "model.nan": torch.tensor([1.0, float("nan")]),
            "model.inf": torch.tensor([[1.0], [-float("inf")]]),
            "model.equal": torch.full((5,), 1e6),
            "model.half": torch.arange(7).half(),
            "model.double": torch.arange(3.0).double(),
            "model.empty": torch.zeros(0),
        }
        equal, half, double = histograms_of(weights, context)
    assert (equal.name, equal.counts.sum(), equal.sum) == ("weights/equal", 5, 5e6)
    assert (half.name, half.counts.sum(), half.sum, half.sum_of_squares) == ("weights/half", 7, 21, 91)
    assert (double.sum, double.sum_of_squares, weights["model.double"].tolist()) == (3, 5, [0, 1, 2])
    assert len(half.counts) == BINS == len(half.edges) - 1
