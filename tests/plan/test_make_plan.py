"""Plans: what is chosen, shown, saved and loaded."""

import json
import re

import pytest
import torch
from command import run_trainer
from jobs import config, write_rows
from sequences import sequence_config
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan

from torchx_recsys.planner.hardware import Cluster
from torchx_recsys.planner.tables import PlannedTable
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.embeddings import table_shapes
from trainer.plan.make_plan import plan_for
from trainer.plan.plan_file import load_plan, plan_to_json
from trainer.plan.sharding_plan import parameter_sharding, render_plan, shards_of, table_plans
from trainer.plan.tables import OF_SEQUENCES, check_types, column_shards_in_words, tables_to_plan
from trainer.training.sharded_model import build_unsharded_model

TWO_HOSTS = Cluster(None, nodes=2, per_host=2, on_gpu=False)
KINDS = ["table_wise", "row_wise", "table_row_wise", "column_wise", "grid_shard", "data_parallel"]


def planned(tmp_path, ranks=4, local=2, **changes):
    settings = Config.model_validate(config(tmp_path, **changes))
    task = build_unsharded_model(settings, torch.device("cpu"))
    return task, plan_for(task, settings, Cluster(None, ranks // local, local, on_gpu=False))[0]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_job_is_told_that_its_saves_lack_memory(tmp_path, asynchronous):
    changes = {"data__sparse": {"s0": {"rows": 10_000_000}}, "planner__host_memory_gib": 1.4}
    settings = Config.model_validate(config(tmp_path, checkpoint__asynchronous=asynchronous, **changes))
    model = build_unsharded_model(settings, torch.device("cpu"))
    _, remarks = plan_for(model, settings, Cluster(None, 1, 1, on_gpu=False))
    assert ("\na save copies the state, with which a rank takes up to 1." in remarks) == asynchronous


def one_of_each(tmp_path):
    tables = {f"s{i}": {"sharding_types": [kind]} for i, kind in enumerate(KINDS)}
    return planned(tmp_path, planner__tables=tables)


def test_every_table_gets_the_type_that_it_asks_for(tmp_path):
    _, plan = one_of_each(tmp_path)
    assert [table.sharding_type for table in table_plans(plan).values()] == KINDS


def test_every_table_gets_the_kernel_that_is_set_for_all_unless_it_has_its_own(tmp_path):
    _, plan = planned(tmp_path, ranks=1, local=1)
    assert {table.compute_kernel for table in table_plans(plan).values()} == {"fused"}
    tables = {"s1": {"compute_kernels": ["fused"]}}
    _, plan = planned(tmp_path, planner__compute_kernels=["dense"], planner__tables=tables)
    kernels = [table.compute_kernel for table in table_plans(plan).values()]
    assert kernels == ["dense", "fused", "dense", "dense", "dense", "dense"]


def test_a_saved_plan_is_loaded_as_it_was(tmp_path):
    task, plan = one_of_each(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_json(plan, table_shapes(task), 4)))
    assert load_plan(str(tmp_path / "plan.json"), table_shapes(task), 4, 2, "cpu") == plan


def test_the_printed_plan_adds_up(tmp_path):
    task, plan = one_of_each(tmp_path)
    lines = render_plan(plan, task, 4).splitlines()
    assert [line.split()[3] for line in lines[2:8]] == KINDS
    on_ranks = sum(float(line.split()[1]) for line in lines[-4:])
    whole = sum(rows * columns * 4 for rows, columns in table_shapes(task).values())
    copies = 3 * 105 * 16 * 4  # the replicated table is on three more ranks
    assert on_ranks == pytest.approx((whole + copies) / 2**20, abs=0.03)


def test_the_printed_plan_names_tables_in_host_memory(tmp_path):
    task, plan = one_of_each(tmp_path)
    assert "host memory" not in render_plan(plan, task, 4)
    first, second, *_ = tables = table_plans(plan)
    tables[first].compute_kernel, tables[second].compute_kernel = "fused_uvm", "fused_uvm_caching"
    line = render_plan(plan, task, 4).splitlines()[-1]
    assert line == f"in host memory, not on GPUs (UVM): {first}, {second}"


def first_table(plan):
    module, *_ = plan["modules"].values()
    return next(iter(module.values()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.update(world_size=8), "a plan for 8 ranks; this job has 4"),
        (lambda plan: next(iter(plan["modules"].values())).pop("s3"), "a plan for other tables; they differ in: s3"),
        (lambda plan: plan.pop("modules"), "cannot be read as a plan: 'modules' is missing"),
        (lambda plan: first_table(plan).pop("ranks"), r"cannot be read as a plan: 'modules\..*\.ranks' is missing"),
        (lambda plan: first_table(plan).update(ranks="0-"), "ranks is '0-': string should match"),
        (lambda plan: first_table(plan).update(shard_columns=5), "which do not make up 16 columns; plan anew"),
        (lambda plan: plan.update(modules=[]), r"cannot be read as a plan: modules is \[\]"),
        (lambda plan: plan.pop("world_size"), "cannot be read as a plan: 'world_size' is missing"),
    ],
)
def test_a_plan_of_another_job_is_refused(tmp_path, change, message):
    task, plan = planned(tmp_path)
    content = plan_to_json(plan, table_shapes(task), 4)
    change(content)
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_plan(str(tmp_path / "plan.json"), table_shapes(task), 4, 2, "cpu")


def test_a_file_that_is_no_plan_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(InputError, match=r"planner.plan is '.*plan.json', which is not JSON: Expecting"):
        load_plan(str(tmp_path / "plan.json"), {}, 4, 2, "cpu")
    with pytest.raises(InputError, match=r"planner.plan is '.*', which cannot be used: .*Is a directory"):
        load_plan(str(tmp_path), {}, 4, 2, "cpu")


def test_tables_of_another_shape_are_refused(tmp_path):
    task, plan = planned(tmp_path)
    other, _ = planned(tmp_path, data__sparse__s2={"rows": 7})
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_json(plan, table_shapes(task), 4)))
    with pytest.raises(ValueError, match=r"table 's2' is \(102, 16\); the model's is \(7, 16\)"):
        load_plan(str(tmp_path / "plan.json"), table_shapes(other), 4, 2, "cpu")


def test_uneven_shards_of_rows_are_refused(tmp_path):
    """TorchRec would train with them, on other rows than those of the ids."""
    task, plan = planned(tmp_path, planner__sharding_types=["row_wise"])
    first, second, *_ = shards_of(table_plans(plan)["s3"])
    first.shard_sizes[0] += 1
    second.shard_sizes[0] -= 1
    second.shard_offsets[0] += 1
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_json(plan, table_shapes(task), 4)))
    with pytest.raises(InputError, match=r"table 's3' has shards that begin at its rows \[0, 27, 52, 78\]; TorchRec"):
        load_plan(str(tmp_path / "plan.json"), table_shapes(task), 4, 2, "cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"planner__tables": {"s0": {"compute_kernels": ["key_value"]}}},
            "planner.tables.s0.compute_kernels holds 'key_value', which is no compute kernel; known: dense, fused, "
            "fused_uvm, fused_uvm_caching",
        ),
        (
            {"planner__compute_kernels": ["fuzed"]},
            "planner.compute_kernels holds 'fuzed', which is no compute kernel; did you mean 'fused'?",
        ),
        (
            {"planner__tables": {"s0": {"compute_kernels": ["fused_uvm"], "sharding_types": ["row_wise"]}}},
            "table 's0' may have the compute kernels fused_uvm and the sharding types row_wise, of which none go "
            "together on cpu; change planner.compute_kernels or planner.sharding_types, or those of planner.tables.s0",
        ),
        (
            {"planner__compute_kernels": ["fused_uvm"]},
            "table 's0' may have the compute kernels fused_uvm and the sharding types data_parallel, table_wise, row",
        ),
        (
            {"planner__compute_kernels": ["fused"], "planner__mode": "data_parallel"},
            "table 's0' may have the compute kernels fused and the sharding types data_parallel, of which none go",
        ),
        (
            {"model__embedding_dim": 6, "planner__sharding_types": ["table_wise"]},
            "has shards of 6 columns, and FBGEMM's kernels need a multiple of 4",
        ),
        (
            {"data__global_batch_size": 2**40},
            "data.global_batch_size is 1099511627776, and a rank's memory has no room",
        ),
        ({"data__sparse__s0": {"rows": 2**31 - 1}}, "the tables, 128 GiB without their optimizer's"),
    ],
)
def test_what_cannot_be_planned_is_named(tmp_path, changes, message):
    with pytest.raises(InputError, match=re.escape(message)):
        planned(tmp_path, planner__host_memory_gib=1.0, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"model__embedding_dim": 6, "planner__mode": "data_parallel"},
        {"planner__min_columns": 64, "planner__sharding_types": ["column_wise", "column_wise"]},
        {"planner__min_columns": 3, "planner__sharding_types": ["column_wise"]},
        {"data__sparse__s0": {"rows": 5, "table": "shared"}, "planner__tables": {"shared": {}}},
    ],
)
def test_what_looks_odd_and_can_be_planned(tmp_path, changes):
    _, plan = planned(tmp_path, **changes)
    assert len(table_plans(plan)) == 6


@pytest.mark.parametrize(
    ("optimizer", "kinds"), [("rowwise_adagrad", []), ("sgd", []), ("rowwise_adagrad", ["column_wise"])]
)
def test_columns_are_cut_with_state_by_row_only_if_asked_for(tmp_path, optimizer, kinds):
    """Each shard would have a state of its own, on which losses depend."""
    settings = Config.model_validate(
        config(tmp_path, optimizer__sparse={"name": optimizer}, planner__sharding_types=kinds)
    )
    model = build_unsharded_model(settings, torch.device("cpu"))
    allowed = {kind for table in tables_to_plan(model, settings, settings.planner) for kind in table.kinds}
    assert ("column_wise" in allowed) == (optimizer == "sgd" or bool(kinds))


def test_sequences_are_planned(tmp_path):
    settings = Config.model_validate(sequence_config(tmp_path, "din"))
    model = build_unsharded_model(settings, torch.device("cpu"))
    plan = table_plans(plan_for(model, settings, TWO_HOSTS)[0])
    assert plan.keys() == {"films", "city"}
    assert plan["films"].sharding_type in OF_SEQUENCES


@pytest.mark.parametrize(
    ("rows", "on_gpu", "changes", "expected"),
    [
        (60, False, {}, "data_parallel"),
        (30_000_000, False, {}, "row_wise"),
        (60, True, {}, None),
        (60, True, {"planner__sharding_types": ["data_parallel"]}, "data_parallel"),
        (60, False, {"optimizer__sparse": {"name": "adam", "learning_rate": 0.1}}, None),
    ],
)
def test_small_tables_of_sequences_are_replicated_on_cpus_and_where_a_key_names_it(
    tmp_path, rows, on_gpu, changes, expected
):
    changes = {"data__global_batch_size": 8192, "planner__memory_gib": 80.0, "planner__host_memory_gib": 80.0} | changes
    tree = sequence_config(tmp_path, "din", **changes)
    for feature in ("item", "history"):
        tree["data"]["sparse"][feature]["rows"] = rows
    settings = Config.model_validate(tree)
    model = build_unsharded_model(settings, torch.device("cpu"))
    plan = table_plans(plan_for(model, settings, Cluster(None, nodes=1, per_host=4, on_gpu=on_gpu))[0])
    assert (plan["films"].sharding_type == "data_parallel") == (expected == "data_parallel")
    assert expected in (None, plan["films"].sharding_type)


def test_sequences_are_refused_in_column_shards_of_several_widths(tmp_path):
    tree = sequence_config(tmp_path, "din", planner__sharding_types=["column_wise"])
    tree["data"]["sparse"]["item"]["table"] = "other"
    settings = Config.model_validate(tree)
    model = build_unsharded_model(settings, torch.device("cpu"))
    plan = plan_for(model, settings, TWO_HOSTS)[0]
    check_types(plan, settings)
    shards = shards_of(table_plans(plan)["other"])
    shards[0].shard_sizes[1] = 16
    del shards[1:]
    with pytest.raises(InputError, match="cuts tables of sequences into shards of 8 and 16 columns; make them equal"):
        check_types(plan, settings)


def test_sequences_take_the_memory_of_all_their_ids(tmp_path):
    """64 samples of a million ids, their 16 values and 8 bytes for each id itself, and what is pooled."""
    tree = sequence_config(tmp_path, "din", planner__host_memory_gib=4.0, planner__sharding_types=["row_wise"])
    tree["data"]["sparse"]["history"]["hotness"] = 1e6
    settings = Config.model_validate(tree)
    model = build_unsharded_model(settings, torch.device("cpu"))
    expected = f"its ids and embeddings, {64e6 * (4 * 16 + 8) / 2**30:.3g} GiB, do not fit"
    with pytest.raises(InputError, match=re.escape(expected)):
        plan_for(model, settings, TWO_HOSTS)[0]


def test_a_job_uses_the_plan_that_the_plan_command_wrote(tmp_path):
    import tomli_w

    data = write_rows(tmp_path / "data", [64])
    settings = tmp_path / "config.toml"
    settings.write_text(tomli_w.dumps(config(data, train__steps=1)))
    plan = ["--world-size", 1, "--planner.sharding-types", "column_wise", "--out", tmp_path / "plan.json"]
    done = run_trainer("plan", settings, *plan)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("column_wise fused") == 6
    done = run_trainer("train", settings, "--out", tmp_path / "run", "--planner.plan", tmp_path / "plan.json")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run/plan.json").read_text()) == json.loads((tmp_path / "plan.json").read_text())


@pytest.mark.more("rare")
@pytest.mark.slow
def test_a_hundred_thousand_shards_make_a_small_file(tmp_path):
    shapes = {f"t{number:04}": (10_000_019, 64) for number in range(100)}
    planned = {
        name: PlannedTable(rows=rows, columns=64, kind="row_wise", kernel="fused", shard_columns=64, ranks=range(1024))
        for name, (rows, _) in shapes.items()
    }
    placed = {name: parameter_sharding(table, "cuda", 8) for name, table in planned.items()}
    plan = ShardingPlan({"tables": EmbeddingModuleShardingPlan(placed)})
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_json(plan, shapes, 1024), indent=2))
    assert (tmp_path / "plan.json").stat().st_size < 40_000
    assert load_plan(str(tmp_path / "plan.json"), shapes, 1024, 8, "cuda") == plan


JOIN_COLUMNS = ("rowwise_adagrad", "partial_rowwise_adam", "lamb", "partial_rowwise_lamb", "lars_sgd")


@pytest.mark.parametrize("name", ["sgd", "adam", *JOIN_COLUMNS])
def test_column_shards_that_change_what_is_learned_are_not_chosen(tmp_path, name):
    wide = {f"s{i}": {"rows": 50_000 + i} for i in range(3)}
    changes = {"optimizer__sparse": {"name": name, "learning_rate": 0.1}, "data__sparse": wide}
    changes |= {"model__embedding_dim": 512, "model__dense_layers": [512], "data__global_batch_size": 8192}
    _, plan = planned(tmp_path, local=4, **changes)
    is_cut = any(shard.shard_offsets[1] for table in table_plans(plan).values() for shard in shards_of(table))
    assert is_cut == (name not in JOIN_COLUMNS)
    assert column_shards_in_words(plan, Config.model_validate(config(tmp_path, **changes))) == ""


def test_column_shards_that_are_asked_for_are_said(tmp_path):
    changes = {"optimizer__sparse": {"name": "lamb", "learning_rate": 0.1}, "planner__sharding_types": ["column_wise"]}
    _, plan = planned(tmp_path, **changes)
    said = column_shards_in_words(plan, Config.model_validate(config(tmp_path, **changes)))
    assert said.startswith("cut by columns: s0, s1, s2 and 3 more; lamb joins the columns of each shard")
