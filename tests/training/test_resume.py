"""A run that stopped and was resumed ends as the run that never stopped."""

import json
import shutil

import numpy as np
import pytest
import torch
from jobs import config, launch, launch_rounds, saved_tensors, write_rows

pytestmark = pytest.mark.few(3, "the other plans")
KINDS = ["table_wise", "row_wise", "data_parallel", "table_row_wise", "column_wise", "grid_shard"]

REPLANNED = [
    ("table_wise", "row_wise"),
    ("row_wise", "data_parallel"),
    ("data_parallel", "table_row_wise"),
    ("table_row_wise", "table_wise"),
]


def settings(data, kind, steps):
    """Half way through the second epoch and in the middle of a report interval, so that both have to be carried on."""
    mode = {"planner__mode": "data_parallel"} if kind == "data_parallel" else {"planner__sharding_types": [kind]}
    return config(
        data,
        **mode,
        optimizer__sparse__name="rowwise_adagrad",
        optimizer__dense={"name": "adamw", "learning_rate": 0.01, "weight_decay": 0.1},
        optimizer__sparse__schedule={"warmup_steps": 8, "decay": "linear", "decay_steps": 4},
        checkpoint__every_steps=5,
        report__interval_steps=3,
        train__steps=steps,
    )


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(cells, tmp_path_factory):
    """On 4 ranks: baselines of 10 steps, and runs of 5; the latter are resumed to 10 on 4, 2 and 1 ranks."""
    folder = tmp_path_factory.mktemp("resume")
    data = write_rows(folder / "data", [200, 10, 54])
    kinds = dict.fromkeys([*cells("kind"), *cells("before")])
    start = [{"config": settings(data, kind, 10), "out": str(folder / f"{kind}-baseline")} for kind in kinds]
    start += [{"config": settings(data, kind, 5), "out": str(folder / f"{kind}-4")} for kind in kinds]
    launch(start, 4, folder)
    for ranks in (1, 2, 4):
        for kind in kinds:
            if ranks < 4:
                shutil.copytree(folder / f"{kind}-4", folder / f"{kind}-{ranks}")
    rounds = [
        (
            ranks,
            [
                {"config": settings(data, kind, 10), "out": str(folder / f"{kind}-{ranks}"), "resume": "must"}
                for kind in kinds
            ],
        )
        for ranks in (1, 2, 4)
    ]
    launch_rounds(rounds, folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_ranks_end_bit_for_bit_the_same(runs, kind):
    baseline, resumed = saved_tensors(runs / f"{kind}-baseline", 10), saved_tensors(runs / f"{kind}-4", 10)
    assert baseline.keys() == resumed.keys()
    assert {name.split(".")[0] for name in baseline} == {"model", "table", "dense"}
    for name, value in baseline.items():
        assert torch.equal(value, resumed[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_logs_the_same_losses(runs, kind):
    baseline, resumed = lines(runs / f"{kind}-baseline"), lines(runs / f"{kind}-4")
    assert [line["step"] for line in baseline] == [3, 6, 9, 10]
    # A run that ends at step 5 reports there; resumed to 10, it drops nothing.
    by_step = {line["step"]: line["loss"] for line in resumed}
    assert by_step[9] == [line["loss"] for line in baseline][2]
    assert by_step[10] == [line["loss"] for line in baseline][3]


@pytest.fixture(scope="module")
def replanned(runs, cells, tmp_path_factory):
    """Runs that stopped under one plan on 4 ranks and are resumed under another on 2."""
    folder = tmp_path_factory.mktemp("replanned")
    jobs = []
    for before, after in cells("before, after"):
        out = folder / f"{before}-{after}"
        shutil.copytree(runs / f"{before}-4", out)
        shutil.rmtree(out / "checkpoints/step-000000010")
        jobs.append({"config": settings(runs / "data", after, 10), "out": str(out), "resume": "must"})
    launch(jobs, 2, folder)
    return folder


@pytest.mark.few(2, "the other plans")
@pytest.mark.parametrize(("before", "after"), REPLANNED)
def test_resuming_under_another_plan_gives_the_same_weights(runs, replanned, before, after):
    """These types compute the same with one accumulator per row; column shards would keep several."""
    baseline, resumed = (
        saved_tensors(runs / f"{before}-baseline", 10),
        saved_tensors(replanned / f"{before}-{after}", 10),
    )
    assert baseline.keys() == resumed.keys()
    for name, value in baseline.items():
        np.testing.assert_allclose(resumed[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("ranks", [2, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_resuming_on_other_ranks_gives_the_same_weights_and_losses(runs, kind, ranks):
    baseline, resumed = saved_tensors(runs / f"{kind}-baseline", 10), saved_tensors(runs / f"{kind}-{ranks}", 10)
    for name, value in baseline.items():
        if value.shape == resumed[name].shape:  # row-wise state has a value per column shard
            np.testing.assert_allclose(resumed[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(
        [line["loss"] for line in lines(runs / f"{kind}-{ranks}") if line["step"] > 6],
        [line["loss"] for line in lines(runs / f"{kind}-baseline") if line["step"] > 6],
        rtol=1e-5,
    )
