"""Every plan restores every plan's checkpoint, weights and optimizer state, exactly, on another number of ranks.

What is restored first is a delta and what it builds on, and it is compared with a whole checkpoint of the same run. By
default each plan restores itself, and every second one another, too, but for optimizers with sharded state only four
plans; `--all` takes every pair.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import run_forked
from jobs import config, launch, saved_tensors, write_rows
from reshard import run_rounds
from trainer_process import deltas_in

from trainer.checkpoint.store import Checkpoints
from trainer.core.run_directory import RunDirectory
from trainer.models.embeddings import table_of_weight

pytestmark = pytest.mark.more("test_resume.py goes on under another plan and on other ranks")

KINDS = [
    "table_wise",
    "row_wise",
    "column_wise",
    "table_row_wise",
    "table_column_wise",
    "grid_shard",
    "data_parallel",
]
# By table. The first two share one, as the first has too few rows for four ranks: of a group of tables whose last one
# has none, FBGEMM reads past the end on a CPU.
OPTIMIZERS = {
    "replicable": ["rowwise_adagrad", "rowwise_adagrad", "adagrad", "sgd", "adagrad", "rowwise_adagrad"],
    "sharded": ["partial_rowwise_adam", "partial_rowwise_adam", "adam", "lamb", "lars_sgd", "partial_rowwise_lamb"],
}
KINDS_OF = {"replicable": KINDS, "sharded": KINDS[:-1]}
SAMPLED_KINDS = KINDS_OF | {"sharded": ["row_wise", "column_wise", "table_row_wise", "grid_shard"]}
COLUMN_SHARDED = ("column_wise", "table_column_wise", "grid_shard")
SAMPLED_SHIFT = 3  # through the kinds, from the plan before to the one after
Move = tuple[str, str, str]
MIN_COLUMNS = {4: 8, 2: 12, 1: 8}  # of 24: three column shards, two, and three
STEPS = 3


def planned(data, kind, optimizers, ranks):
    mode = {"planner__mode": "data_parallel"} if kind == "data_parallel" else {"planner__sharding_types": [kind]}
    settings = config(
        data,
        **mode,
        planner__min_columns=MIN_COLUMNS[ranks],
        model={"embedding_dim": 24, "dense_layers": [16], "over_layers": [16]},
        optimizer__tables={f"s{i}": {"name": name} for i, name in enumerate(OPTIMIZERS[optimizers])},
        optimizer__sparse={"learning_rate": 0.1},
        optimizer__dense={"name": "adamw", "learning_rate": 0.01},
        checkpoint__every_steps=STEPS,
        train__steps=STEPS,
    )
    settings["data"]["sparse"]["s0"] = {"rows": 5, "ids": "modulo"}
    return settings


def moves(whole: bool) -> list[Move]:
    """Returns the plans before and after, with optimizers: all, or a sample where each is as often before as after."""
    return [
        (before, kinds[(number + shift) % len(kinds)], optimizers)
        for optimizers, kinds in (KINDS_OF if whole else SAMPLED_KINDS).items()
        for number, before in enumerate(kinds)
        for shift in (range(len(kinds)) if whole else {0, SAMPLED_SHIFT * (number % 2)})
    ]


MATRIX = "before, after, optimizers", moves


def plans_of(matrix: list[Move]) -> list[tuple[str, str]]:
    """Returns the plans that are trained under, each with its optimizers."""
    return list(dict.fromkeys((before, optimizers) for before, _, optimizers in matrix))


def place(folder: Path, ranks: int, before: str, after: str, optimizers: str) -> Path:
    """Returns the run directory of a state that was trained under one plan and restored under another."""
    return folder / f"{optimizers}-on-{ranks}-{before}-to-{after}"


def trained(folder: Path, kind: str, optimizers: str) -> Path:
    return folder / f"{optimizers}-trained-{kind}"


def with_deltas(folder: Path, kind: str, optimizers: str) -> Path:
    return folder / f"{optimizers}-with-deltas-{kind}"


def restores(
    folder: Path, data: Path, ranks: int, all_moves: list[Move], origin: Callable[[str, str], Path]
) -> tuple[int, list[dict]]:
    """Returns a round of restores under other plans; `origin` names the run to start from, by plan and optimizers."""
    tasks = [
        {
            "config": planned(data, kind, optimizers, ranks),
            "moves": {
                str(origin(before, optimizers)): str(place(folder, ranks, before, after, optimizers))
                for before, after, of in all_moves
                if (after, of) == (kind, optimizers)
            },
        }
        for kind, optimizers in plans_of(all_moves)
    ]
    return ranks, tasks


@pytest.fixture(scope="module")
def states(matrix, tmp_path_factory):
    """Trained on 4 ranks under every plan; then restored under others on 2 ranks, from there on 1, from there on 4."""
    folder = tmp_path_factory.mktemp("reshard")
    data = write_rows(folder / "data", [200])
    jobs = []
    for kind, optimizers in plans_of(matrix):
        tree = planned(data, kind, optimizers, 4)
        deltas = tree | {"checkpoint": {"every_steps": STEPS - 1, "full_every": 2}}
        jobs.append({"config": tree, "out": str(trained(folder, kind, optimizers))})
        jobs.append({"config": deltas, "out": str(with_deltas(folder, kind, optimizers))})
    launch(jobs, 4, folder)
    rounds = [
        restores(folder, data, 2, matrix, lambda kind, optimizers: with_deltas(folder, kind, optimizers)),
        restores(folder, data, 1, matrix, lambda kind, optimizers: place(folder, 2, kind, kind, optimizers)),
        restores(folder, data, 4, matrix, lambda kind, optimizers: place(folder, 1, kind, kind, optimizers)),
    ]
    run_forked(run_rounds, rounds, folder=folder)
    return folder


def canonical(tensors: dict) -> dict:
    """Returns row-wise state as for whole rows: the mean of its column shards, which are equally wide here."""

    tables = {table: value for name, value in tensors.items() if (table := table_of_weight(name))}

    def whole(name, value):
        if not name.startswith("table.") or value.dim() > 1:
            return value
        rows = len(tables[name.split(".")[1]])
        return value.view(-1, rows).double().mean(0).float()

    return {name: whole(name, value) for name, value in tensors.items()}


def test_a_plan_restores_the_checkpoint_of_another(states, before, after, optimizers):
    expected = canonical(saved_tensors(trained(states, before, optimizers), STEPS))
    assert {name.split(".")[0] for name in expected} == {"model", "table", "dense"}
    for ranks in (2, 1, 4):
        found = canonical(saved_tensors(place(states, ranks, before, after, optimizers), STEPS))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), f"{name} on {ranks} ranks"


def test_what_is_restored_is_a_delta(states, matrix):
    for kind, optimizers in plans_of(matrix):
        checkpoints = Checkpoints(RunDirectory(str(with_deltas(states, kind, optimizers))))
        assert deltas_in(checkpoints) == {STEPS: STEPS - 1}, (kind, optimizers)


@pytest.mark.parametrize("kind", COLUMN_SHARDED)
def test_the_number_of_column_shards_changes_with_the_ranks(states, kind):
    """So that the matrix does go from three column shards to two and back."""
    for ranks, shards in ((4, 3), (2, 2), (1, 3)):
        state = saved_tensors(place(states, ranks, kind, kind, "replicable"), STEPS)["table.s1.momentum1"]
        assert len(state) == 101 * shards, ranks


def test_unchanged_column_shards_keep_their_state(states, matrix):
    """Where the column shards stay, nothing is averaged."""
    for kind, optimizers in plans_of(matrix):
        before = saved_tensors(place(states, 1, kind, kind, optimizers), STEPS)
        after = saved_tensors(place(states, 4, kind, kind, optimizers), STEPS)
        for name, value in before.items():
            assert torch.equal(after[name], value), (kind, optimizers, name)
