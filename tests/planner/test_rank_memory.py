"""The memory of ranks under a plan: as allocations are recorded in real runs, and never more than the search allows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command import run_trainer, write_config
from forked import run_forked
from jobs import config
from planning import solve
from ready_made import NAMES, ready_made

from benchmarks.planned_memory import CASES, KEPT, error, measure
from torchx_recsys.planner.rank_memory import NONE, ON_GPU, memory_of, room_for_shards, shards_of_tables
from torchx_recsys.planner.search import planned_table
from torchx_recsys.planner.shard_memory import memory_by_kind, shard_memory
from torchx_recsys.planner.tables import all_options
from trainer.config.root import Config
from trainer.models.builder import build_model
from trainer.plan.dense_part import dense_part
from trainer.plan.sharding_plan import shards_in_plan, to_sharding_plan
from trainer.plan.tables import tables_to_plan
from trainer.plan.topology import topology_to_plan_for

FIGURES = json.loads(KEPT.read_text())
CLOSE, FAR, MAY_BE_FAR = 0.05, 0.1, 1
MEASURED = ["dlrm, planned, two ranks", "mmoe, replicated"]
MATRIX = "measured", lambda whole: [[*CASES]] if whole else [MEASURED]


def test_all_cases_are_kept():
    assert [*FIGURES] == [*CASES]
    assert len(CASES) >= 12
    assert {one["ranks"] for one in FIGURES.values()} == {1, 2, 4}


@pytest.mark.more("measures")
@pytest.mark.slow
def test_predictions_are_close_to_what_was_measured():
    errors = {case: abs(error(case, one)) for case, one in FIGURES.items()}
    assert sum(found > CLOSE for found in errors.values()) <= MAY_BE_FAR, errors
    assert max(errors.values()) <= FAR, errors


def write_figures(cases: list[str], file: Path) -> None:
    file.write_text(json.dumps(measure(cases)))


@pytest.mark.more("measures real runs")
def test_runs_take_the_memory_that_is_predicted(measured, tmp_path):
    file = tmp_path / "figures.json"
    run_forked(write_figures, measured, file, folder=tmp_path)
    errors = {case: abs(error(case, one)) for case, one in json.loads(file.read_text()).items()}
    assert len(errors) == len(measured)
    assert sum(found > CLOSE for found in errors.values()) <= MAY_BE_FAR, errors
    assert max(errors.values()) <= FAR, errors


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.slow
def test_activations_of_every_model_grow_with_the_batch(tmp_path, name):
    tree = ready_made(name, tmp_path)
    small, large = (
        dense_part(Config.model_validate(tree | {"data": tree["data"] | {"global_batch_size": samples}}), 2).memory
        for samples in (512, 1024)
    )
    assert small.weights == large.weights > 0
    assert small.gradients <= small.weights
    assert 1.4 * small.activations < large.activations < 4.1 * small.activations


def weights_of(tree):
    settings = Config.model_validate(tree)
    model = build_model(settings.data, settings.model, settings.predictions(), torch.device("cpu"))
    return sum(weight.nbytes for weight in model.parameters() if weight.device.type == "cpu")


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 0), ("adagrad", 1), ("adam", 2)])
def test_state_of_the_dense_part_is_that_of_its_optimizer(rows, optimizer, copies):
    tree = config(rows, optimizer__dense={"name": optimizer})
    found = dense_part(Config.model_validate(tree), 1).memory
    assert found.weights == found.gradients == weights_of(tree)
    assert copies * found.weights <= found.state <= copies * found.weights + 100  # a number of steps for each weight


def test_frozen_weights_have_no_gradients(rows):
    frozen = {"name": "adam", "frozen": ["*"]}
    found = dense_part(Config.model_validate(config(rows, optimizer__dense=frozen)), 1).memory
    assert (found.gradients, found.state) == (0, 0)


def test_a_model_of_ones_own_is_traced(rows):
    tree = config(rows, model__name="task_models:Heads")
    tree["tasks"] = {"label": {"label": "label", "prediction": "score"}}
    assert dense_part(Config.model_validate(tree), 1).memory.activations > 0


def test_a_model_that_needs_values_is_planned_without_its_dense_part(rows, tmp_path, caplog):
    tree = config(rows, model__name="task_models:NeedsValues", train__steps=1)
    tree["tasks"] = {"label": {"label": "label", "prediction": "score"}}
    settings = Config.model_validate(tree)
    found = dense_part(settings, 1).memory
    assert (found.weights, found.activations) == (0, 0)
    assert "plans leave out the dense part" in caplog.text
    done = run_trainer("train", write_config(tmp_path / "config.toml", tree), "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "plans leave out the dense part" in done.stderr


def planned(rows, world_size, device="cpu", **changes):
    settings = Config.model_validate(
        config(rows, **{"planner__memory_gib": 1, "planner__host_memory_gib": 1} | changes)
    )
    model = build_model(settings.data, settings.model, settings.predictions(), torch.device("meta"))
    topology = topology_to_plan_for(
        settings.data, settings.planner, settings.comms, settings.train, world_size, world_size, device
    )
    return settings, model, topology, tables_to_plan(model, settings, settings.planner)


def shards_of(solution, tables):
    return shards_of_tables([planned_table(solution, number, table) for number, table in enumerate(tables)])


SOME = {f"s{number}": {"rows": 1000 * (number + 1)} for number in range(6)}


@pytest.mark.parametrize(
    "kind", ["data_parallel", "table_wise", "row_wise", "column_wise", "table_row_wise", "table_column_wise", None]
)
def test_a_solution_takes_what_its_plan_takes(rows, kind):
    chosen = [kind] if kind else []
    settings, model, topology, tables = planned(rows, 3, data__sparse=SOME, planner__sharding_types=chosen)
    solution = solve(tables, topology)
    by_solution, by_plan = (
        memory_of(shards, tables, topology, dense_part(settings, 3).memory)
        for shards in (
            shards_of(solution, tables),
            shards_in_plan(to_sharding_plan(solution, tables, model), tables, 3),
        )
    )
    for name, size in by_solution.by_kind().items():
        np.testing.assert_array_equal(size, by_plan.by_kind()[name], err_msg=name)


@pytest.mark.parametrize("kind", ["data_parallel", "table_wise", "row_wise", "column_wise"])
def test_tables_and_state_are_counted_shard_by_shard(rows, kind):
    adagrad = {"name": "rowwise_adagrad"}
    large = {name: {"rows": 100 * one["rows"]} for name, one in SOME.items()}  # so that gradients are at the peak
    settings, _, topology, tables = planned(
        rows, 2, data__sparse=large, planner__sharding_types=[kind], optimizer__sparse=adagrad
    )
    found = memory_of(
        shards_of(solve(tables, topology), tables), tables, topology, dense_part(settings, 2).memory, NONE
    )
    table_rows = sum(one["rows"] for one in large.values())
    copies, pieces = (2 if kind == "data_parallel" else 1), (2 if kind == "column_wise" else 1)
    assert found.tables.sum() == copies * 4 * 16 * table_rows
    assert found.state.sum() == copies * pieces * 4 * table_rows
    gradients = found.tables.sum() if kind == "data_parallel" else 0
    assert found.replicated.sum() == gradients


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adam"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_a_plan_that_the_search_has_room_for_fits(rows, world_size, device, optimizer):
    settings, _, topology, tables = planned(
        rows, world_size, device, data__sparse=SOME, optimizer__sparse={"name": optimizer}
    )
    solution = solve(tables, topology)
    options = all_options(tables, topology)
    of_shards = np.zeros((world_size, 2))
    for number in range(len(tables)):
        of_shards[solution.placement.where[number]] += shard_memory(options, tables, topology)[
            solution.placement.option[number]
        ]
    column = 0 if device == "cuda" else 1
    dense = dense_part(settings, world_size).memory
    capacity, needed = 2**34, memory_of(shards_of(solution, tables), tables, topology, dense)
    room = room_for_shards(capacity, tables, topology, dense)
    assert needed.total[:, column].max() <= capacity - room + 1.1 * of_shards[:, column].max()
    assert room < capacity - (ON_GPU.context if device == "cuda" else 0)


def test_kinds_add_up_to_what_the_search_counts(rows):
    _, _, topology, tables = planned(rows, 4, data__sparse=SOME)
    options = all_options(tables, topology)
    kinds = memory_by_kind(options, tables, topology)
    kept = sum(kinds[kind] for kind in ("tables", "state", "averages", "buckets", "replicated", "ids"))
    assert (shard_memory(options, tables, topology) >= kept).all()
    assert (kinds["tables"].sum(axis=1) > 0).all()


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_maps_of_managed_ids_are_on_the_hosts(rows, device):
    """24 bytes of state for each row, 12 of the index of ids; twice with counts of ids that wait for a row."""
    plain, *others = (
        planned(rows, 4, device, data__sparse=SOME | {"s0": {"rows": 1000} | feature})
        for feature in ({}, {"ids": "managed"}, {"ids": "managed", "admit_after": 3})
    )
    for of_row, (settings, _, topology, tables) in zip((0, 36, 72), (plain, *others), strict=True):
        dense = dense_part(settings, 4).memory
        found = memory_of(shards_of(solve(tables, topology), tables), tables, topology, dense, NONE)
        np.testing.assert_array_equal(found.id_maps, [[0, 250 * of_row]] * 4)
        room = [room_for_shards(2**30, one, topology, dense) for one in (plain[3], tables)]
        assert room[0] - room[1] == (0 if device == "cuda" else 250 * of_row)
