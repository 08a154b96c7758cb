"""Every plan restores every plan's checkpoint, weights and optimizer state, exactly, on another number of ranks.

By default each plan restores itself and two others, and is restored by two others; `--all` takes every pair.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from jobs import config, launch, saved_tensors, write_rows

KINDS = [
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
    "data_parallel",
]
OPTIMIZERS = ["adagrad", "rowwise_adagrad", "partial_rowwise_adam"]  # the last has a slot of each kind
REPLICABLE = ("adagrad", "rowwise_adagrad")
KINDS_OF = {optimizer: KINDS if optimizer in REPLICABLE else KINDS[:-1] for optimizer in OPTIMIZERS}
TRAINED = [(kind, optimizer) for optimizer in OPTIMIZERS for kind in KINDS_OF[optimizer]]
COLUMN_SHARDED = ("column_wise", "table_column_wise", "grid_shard")
SAMPLED_SHIFTS = (0, 2, 3)  # through KINDS, from the plan before to the one after
Move = tuple[str, str, str]
MIN_COLUMNS = {4: 8, 2: 12, 1: 8}  # of 24: three column shards, two, and three
STEPS = 3


def planned(data, kind, optimizer, ranks):
    mode = {"planner__mode": "data_parallel"} if kind == "data_parallel" else {"planner__sharding_types": [kind]}
    settings = config(
        data,
        **mode,
        planner__min_columns=MIN_COLUMNS[ranks],
        model={"embedding_dim": 24, "dense_layers": [16], "over_layers": [16]},
        optimizer__sparse={"name": optimizer, "learning_rate": 0.1},
        optimizer__dense={"name": "adamw", "learning_rate": 0.01},
        checkpoint__every_steps=STEPS,
        train__steps=STEPS,
    )
    # Too few rows for four ranks. Not in the last table: of one without rows, FBGEMM reads past the end on a CPU.
    settings["data"]["sparse"]["s0"] = {"rows": 5, "ids": "modulo"}
    return settings


def moves(config: pytest.Config) -> list[Move]:
    """Returns the plans before and after, with optimizers: all, or a sample where each is as often before as after."""
    return [
        (before, kinds[(number + shift) % len(kinds)], optimizer)
        for optimizer, kinds in KINDS_OF.items()
        for number, before in enumerate(kinds)
        for shift in (range(len(kinds)) if config.getoption("all") else SAMPLED_SHIFTS)
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "before" in metafunc.fixturenames:
        metafunc.parametrize(("before", "after", "optimizer"), moves(metafunc.config))


def place(folder: Path, ranks: int, before: str, after: str, optimizer: str) -> Path:
    """Returns the run directory of a state that was trained under one plan and restored under another."""
    return folder / f"{optimizer}-on-{ranks}-{before}-to-{after}"


def trained(folder: Path, kind: str, optimizer: str) -> Path:
    return folder / f"{optimizer}-trained-{kind}"


def restores(
    folder: Path, data: Path, ranks: int, all_moves: list[Move], origin: Callable[[str, str], Path]
) -> tuple[int, list[dict]]:
    """Returns a round of restores under other plans; `origin` names the run to start from, by plan and optimizer."""
    tasks = [
        {
            "config": planned(data, kind, optimizer, ranks),
            "moves": {
                str(origin(before, optimizer)): str(place(folder, ranks, before, after, optimizer))
                for before, after, of in all_moves
                if (after, of) == (kind, optimizer)
            },
        }
        for kind, optimizer in TRAINED
    ]
    return ranks, tasks


@pytest.fixture(scope="module")
def states(request, tmp_path_factory):
    """Trained on 4 ranks under every plan; then restored under others on 2 ranks, from there on 1, from there on 4."""
    chosen = moves(request.config)
    folder = tmp_path_factory.mktemp("reshard")
    data = write_rows(folder / "data", [200])
    jobs = [
        {"config": planned(data, kind, optimizer, 4), "out": str(trained(folder, kind, optimizer))}
        for kind, optimizer in TRAINED
    ]
    launch(jobs, 4, folder)
    rounds = [
        restores(folder, data, 2, chosen, lambda kind, optimizer: trained(folder, kind, optimizer)),
        restores(folder, data, 1, chosen, lambda kind, optimizer: place(folder, 2, kind, kind, optimizer)),
        restores(folder, data, 4, chosen, lambda kind, optimizer: place(folder, 1, kind, kind, optimizer)),
    ]
    file = folder / "moves.json"
    file.write_text(json.dumps(rounds))
    script = str(Path(__file__).parents[1] / "support/reshard.py")
    done = subprocess.run([sys.executable, script, file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-20000:]
    return folder


TABLES = "model.model.sparse_arch.embedding_bag_collection.embedding_bags"


def canonical(tensors: dict) -> dict:
    """Returns row-wise state as for whole rows: the mean of its column shards, which are equally wide here."""

    def whole(name, value):
        if not name.startswith("table.") or value.dim() > 1:
            return value
        rows = tensors[f"{TABLES}.{name.split('.')[1]}.weight"].size(0)
        return value.view(-1, rows).double().mean(0).float()

    return {name: whole(name, value) for name, value in tensors.items()}


def test_a_plan_restores_the_checkpoint_of_another(states, before, after, optimizer):
    expected = canonical(saved_tensors(trained(states, before, optimizer), STEPS))
    assert {name.split(".")[0] for name in expected} == {"model", "table", "dense"}
    for ranks in (2, 1, 4):
        found = canonical(saved_tensors(place(states, ranks, before, after, optimizer), STEPS))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), f"{name} on {ranks} ranks"


@pytest.mark.parametrize("kind", COLUMN_SHARDED)
def test_the_number_of_column_shards_changes_with_the_ranks(states, kind):
    """So that the matrix does go from three column shards to two and back."""
    for ranks, shards in ((4, 3), (2, 2), (1, 3)):
        state = saved_tensors(place(states, ranks, kind, kind, "rowwise_adagrad"), STEPS)["table.s1.momentum1"]
        assert len(state) == 101 * shards, ranks


@pytest.mark.parametrize(("kind", "optimizer"), TRAINED)
def test_unchanged_column_shards_keep_their_state(states, kind, optimizer):
    """Where the column shards stay, nothing is averaged."""
    before = saved_tensors(place(states, 1, kind, kind, optimizer), STEPS)
    after = saved_tensors(place(states, 4, kind, kind, optimizer), STEPS)
    for name, value in before.items():
        assert torch.equal(after[name], value), name
