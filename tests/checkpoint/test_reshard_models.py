"""Every built-in model restores every plan's checkpoint under every other plan, exactly, on another number of ranks.

By default a sample of the models and plans; `--all` takes every pair of plans of every model.
"""

from pathlib import Path

import pytest
import torch
from forked import run_forked
from jobs import launch, saved_tensors
from ready_made import NAMES, ready_made, sampled, write_ratings
from reshard import run_rounds
from test_reshard import canonical

from trainer.config.root import Config

pytestmark = pytest.mark.more("test_reshard.py has one model")

KINDS = ["table_wise", "row_wise", "column_wise", "data_parallel"]
SAMPLE, STEPS, TRAINED_ON, RESTORED_ON = 5, 3, 2, 4
Move = tuple[str, str, str]


def planned(data: Path, name: str, kind: str) -> dict:
    mode = {"planner__mode": kind} if kind == "data_parallel" else {"planner__sharding_types": [kind]}
    unevaluated = {"data__validation": [], "data__test": []}
    return ready_made(name, data, planner__min_columns=8, train__steps=STEPS, **unevaluated, **mode)


def kinds_of(name: str) -> list[str]:
    """Returns the plans that a model can have: TorchRec cannot replicate tables of sequences on a CPU."""
    data = Config.model_validate(ready_made(name, Path("data"))).data
    return [kind for kind in KINDS if kind != "data_parallel" or not data.sequences]


def moves(whole: bool) -> list[Move]:
    """Returns models, each with the plans before and after."""
    everything = [
        (name, before, after)
        for name in NAMES
        for before in kinds_of(name)
        for after in kinds_of(name)
        if before != after
    ]
    return sampled(everything, SAMPLE, whole)


MATRIX = "name, before, after", moves


@pytest.fixture(scope="module")
def states(matrix, tmp_path_factory):
    """Trained on 2 ranks, then restored under other plans on 4."""
    folder = tmp_path_factory.mktemp("reshard-models")
    data = write_ratings(folder)
    trained = dict.fromkeys((name, before) for name, before, _ in matrix)
    jobs = [{"config": planned(data, *one), "out": str(folder / "-".join(one))} for one in trained]
    launch(jobs, TRAINED_ON, folder)
    restored = dict.fromkeys((name, after) for name, _, after in matrix)
    tasks = [
        {
            "config": planned(data, name, kind),
            "moves": {
                str(folder / f"{name}-{before}"): str(folder / f"{name}-{before}-to-{kind}")
                for of, before, after in matrix
                if (of, after) == (name, kind)
            },
        }
        for name, kind in restored
    ]
    run_forked(run_rounds, [(RESTORED_ON, tasks)], folder=folder)
    return folder


def test_a_plan_restores_the_checkpoint_of_another(states, name, before, after):
    expected = canonical(saved_tensors(states / f"{name}-{before}", STEPS))
    found = canonical(saved_tensors(states / f"{name}-{before}-to-{after}", STEPS))
    assert {part.split(".")[0] for part in expected} == {"model", "table", "dense"}
    assert found.keys() == expected.keys()
    assert [part for part, value in expected.items() if not torch.equal(found[part], value)] == []
