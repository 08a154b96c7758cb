"""The planner counts the optimizer's state and the averages of tables as they are allocated."""

import gc
from contextlib import contextmanager

import pytest
import torch
from command import run_trainer, write_config
from jobs import config
from planning import topology_of
from test_make_plan import planned
from torch.profiler import ProfilerActivity, profile

from torchx_recsys.planner.hardware import GIB
from torchx_recsys.planner.rank_memory import ON_CPU
from torchx_recsys.planner.shard_memory import memory_by_kind
from trainer.config.root import Config
from trainer.core.distributed import local_shards_of, process_group
from trainer.core.errors import InputError
from trainer.optim.averages import Averages
from trainer.optim.table_optimizers import TABLE_OPTIMIZERS
from trainer.plan.dense_part import BYTES_TO_INITIALIZE
from trainer.plan.sharding_plan import shards_in_plan
from trainer.plan.tables import tables_to_plan
from trainer.training.sharded_model import build_sharded_model, build_unsharded_model

TABLES = 6


@pytest.fixture(scope="module")
def context():
    with process_group() as context:
        yield context


def built(rows, context, kind, **changes):
    """Returns a configuration and its model: column-wise, a table has three shards, each with state of its own."""
    settings = config(rows, planner__sharding_types=[kind], model__embedding_dim=24, **changes)
    settings = Config.model_validate(settings)
    return settings, build_sharded_model(settings, context)


def tables_of(settings):
    return tables_to_plan(build_unsharded_model(settings, torch.device("meta")), settings, settings.planner)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("kind", ["table_wise", "column_wise"])
@pytest.mark.parametrize("name", TABLE_OPTIMIZERS)
def test_state_is_counted_as_it_is_allocated(rows, context, name, kind, precision):
    settings, model = built(
        rows, context, kind, optimizer__sparse={"name": name}, model__table_precision=precision, planner__min_columns=8
    )
    states = [value for key, value in model.tensors().items() if key.startswith("table.")]
    storages = [shard.untyped_storage() for value in states for shard in local_shards_of(value)]
    allocated = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}
    tables = tables_of(settings)
    shards = shards_in_plan(model.plan, tables, 1)
    counted = memory_by_kind(shards.options, tables, topology_of(1, 1, on_gpu=False))["state"]
    assert sum(allocated.values()) == counted.sum()


@contextmanager
def allocations():
    """Yields a list that gets the bytes allocated inside and not freed, by the allocator's own record."""
    found = []
    gc.collect()  # or what an earlier test left in cycles may be freed, and counted, here
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        yield found
    found.append(sum(event.nbytes() for event in record.profiler.kineto_results.events() if event.name() == "[memory]"))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("evaluated", [True, False])
def test_averages_are_counted_as_they_are_allocated(rows, context, evaluated, precision):
    settings, model = built(rows, context, "table_wise", model__table_precision=precision)
    ema = {"decay": 0.9, "tables": True, "evaluate": evaluated}
    settings = settings.model_copy(update={"optimizer": Config.model_validate({"optimizer": {"ema": ema}}).optimizer})
    with allocations() as kept:
        averages = Averages(model.model, settings.optimizer.ema)
        swap = averages.swapped_in()
        if evaluated:
            swap.__enter__()
    dense = sum(weight.nbytes for weight in averages._averages.values()) * (1 + evaluated)
    tables = tables_of(settings)
    counted = sum(one.rows * (one.columns * one.averages_per_value + one.averages_per_row) for one in tables)
    assert kept[0] - dense == pytest.approx(counted, abs=100)
    if evaluated:
        swap.__exit__(None, None, None)


ROWS, COLUMNS = 10_000_000, 16
TABLE = ROWS * COLUMNS * 4 / GIB


@pytest.mark.parametrize(
    ("settings", "tables"),
    [
        ({"sparse": {"name": "sgd"}}, 1),
        ({"sparse": {"name": "adam"}}, 3),
        ({"sparse": {"name": "lamb"}}, 3),
        ({"sparse": {"name": "partial_rowwise_lamb"}}, 2 + 1 / 16),
        ({"sparse": {"name": "sgd"}, "ema": {"decay": 0.9, "tables": True, "evaluate": False}}, 2 + 1 / 16),
        ({"sparse": {"name": "sgd"}, "ema": {"decay": 0.9, "tables": True}}, 3 + 1 / 16),
        ({"sparse": {"name": "lamb"}, "ema": {"decay": 0.9, "tables": True}}, 5 + 1 / 16),
        ({"sparse": {"name": "sgd"}, "ema": {"decay": 0.9}}, 1),
    ],
)
def test_a_table_is_planned_where_all_that_is_kept_beside_it_fits(tmp_path, settings, tables):
    changes = {"data__sparse": {"s0": {"rows": ROWS}}, "planner__reserve": 0.0, "planner__sharding_types": ["row_wise"]}
    changes |= {"optimizer": settings}
    on_each_of_four = tables * TABLE / 4
    planned(tmp_path, planner__host_memory_gib=with_the_rest(on_each_of_four * 1.03), **changes)
    with pytest.raises(InputError, match="without their optimizer's state and averages, do not fit"):
        planned(tmp_path, planner__host_memory_gib=with_the_rest(on_each_of_four * 0.97), **changes)


def with_the_rest(gib):
    """Returns the memory of a rank for tables of a size, beside which the model and its batch are next to nothing."""
    return (ON_CPU.context + BYTES_TO_INITIALIZE) / GIB + (1 + ON_CPU.fragmentation) * gib


def test_averages_that_are_not_evaluated_need_no_memory_in_an_evaluation(tmp_path, rows):
    tree = config(rows, data__validation=[str(rows)], optimizer__ema={"decay": 0.9, "tables": True}, train__steps=1)
    tree["data"]["sparse"] = {f"s{i}": {"rows": 50_000} for i in range(TABLES)}
    file = write_config(tmp_path / "config.toml", tree)
    assert run_trainer("train", file, "--out", tmp_path / "out").returncode == 0
    room = 1.5 * TABLES * 50_000 * COLUMNS * 4 / GIB
    words = [file, "--out", tmp_path / "out", "--split", "validation"]
    limit = ["--planner.host-memory-gib", with_the_rest(room), "--planner.reserve", "0"]
    refused = run_trainer("evaluate", *words, *limit)
    assert refused.returncode == 2
    assert "do not fit the memory of the ranks" in refused.stderr
    done = run_trainer("evaluate", *words, *limit, "--optimizer.ema.evaluate", "False")
    assert done.returncode == 0, done.stderr
