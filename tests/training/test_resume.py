"""A run that stopped and went on is the run that never stopped."""

import json
import shutil

import numpy as np
import pytest
import torch
from jobs import config, launch, saved_tensors, write_rows

KINDS = ["table_wise", "row_wise", "table_row_wise", "column_wise", "grid_shard", "data_parallel"]

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
def runs(tmp_path_factory):
    """On 4 ranks: straight to step 10, and to step 5; then the latter goes on to 10 on 4, 2 and 1 ranks."""
    folder = tmp_path_factory.mktemp("resume")
    data = write_rows(folder / "data", [200, 10, 54])
    start = [{"config": settings(data, kind, 10), "out": str(folder / f"{kind}-straight")} for kind in KINDS]
    start += [{"config": settings(data, kind, 5), "out": str(folder / f"{kind}-4")} for kind in KINDS]
    launch(start, 4, folder)
    for ranks in (1, 2, 4):
        for kind in KINDS:
            if ranks < 4:
                shutil.copytree(folder / f"{kind}-4", folder / f"{kind}-{ranks}")
    for ranks in (1, 2, 4):
        jobs = [
            {"config": settings(data, kind, 10), "out": str(folder / f"{kind}-{ranks}"), "resume": "must"}
            for kind in KINDS
        ]
        launch(jobs, ranks, folder)
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_ranks_end_bit_for_bit_the_same(runs, kind):
    straight, resumed = saved_tensors(runs / f"{kind}-straight", 10), saved_tensors(runs / f"{kind}-4", 10)
    assert straight.keys() == resumed.keys()
    assert {name.split(".")[0] for name in straight} == {"model", "table", "dense"}
    for name, value in straight.items():
        assert torch.equal(value, resumed[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_go_on_as_if_nothing_had_happened(runs, kind):
    straight, resumed = lines(runs / f"{kind}-straight"), lines(runs / f"{kind}-4")
    assert [line["step"] for line in straight] == [3, 6, 9, 10]
    # A run that ends at step 5 reports there; the one that goes on to 10 drops nothing of what it knew.
    by_step = {line["step"]: line["loss"] for line in resumed}
    assert by_step[9] == [line["loss"] for line in straight][2]
    assert by_step[10] == [line["loss"] for line in straight][3]


@pytest.fixture(scope="module")
def replanned(runs, tmp_path_factory):
    """Runs that stopped under one plan on 4 ranks and go on under another on 2."""
    folder = tmp_path_factory.mktemp("replanned")
    jobs = []
    for before, after in REPLANNED:
        out = folder / f"{before}-{after}"
        shutil.copytree(runs / f"{before}-4", out)
        shutil.rmtree(out / "checkpoints/step-000000010")
        jobs.append({"config": settings(runs / "data", after, 10), "out": str(out), "resume": "must"})
    launch(jobs, 2, folder)
    return folder


@pytest.mark.parametrize(("before", "after"), REPLANNED)
def test_another_plan_goes_on_the_same(runs, replanned, before, after):
    """These types compute the same with one accumulator per row; cuts by columns would keep several."""
    straight, resumed = (
        saved_tensors(runs / f"{before}-straight", 10),
        saved_tensors(replanned / f"{before}-{after}", 10),
    )
    assert straight.keys() == resumed.keys()
    for name, value in straight.items():
        np.testing.assert_allclose(resumed[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("ranks", [2, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_ranks_goes_on_the_same(runs, kind, ranks):
    straight, resumed = saved_tensors(runs / f"{kind}-straight", 10), saved_tensors(runs / f"{kind}-{ranks}", 10)
    for name, value in straight.items():
        if value.shape == resumed[name].shape:  # row-wise state has a number for each cut by columns
            np.testing.assert_allclose(resumed[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(
        [line["loss"] for line in lines(runs / f"{kind}-{ranks}") if line["step"] > 6],
        [line["loss"] for line in lines(runs / f"{kind}-straight") if line["step"] > 6],
        rtol=1e-5,
    )
