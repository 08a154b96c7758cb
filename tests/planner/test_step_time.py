"""The time of a step, beside a computation of one shard at a time, and what it says of whole plans."""

import dataclasses
import math
import random

import numpy as np
import pytest
from planning import topology_of

from torchx_recsys.planner.lower_bound import rate
from torchx_recsys.planner.step_time import PHASES, costs, step_time, unique_rows
from torchx_recsys.planner.tables import CACHED, KERNELS, KINDS, UVM, DenseWork, PlannedTable, Table, all_options
from torchx_recsys.planner.topology import Speeds, cpu_speeds, data_sheet_speeds

CLUSTERS = [(1, 1), (4, 4), (16, 8), (6, 2), (64, 8)]


def speeds(seed):
    numbers = random.Random(seed)
    return Speeds(**{field.name: numbers.uniform(0.01, 100) for field in dataclasses.fields(Speeds)})


def table(numbers, pooled, number):
    kinds = KINDS if pooled else ("table_wise", "row_wise", "column_wise")
    return Table(
        name=f"t{number}",
        rows=int(10 ** numbers.uniform(0, 6)),
        columns=numbers.choice([8, 24, 32, 64, 128]),
        hotness=tuple(numbers.choice([0.3, 1.0, 1.7, 12.0]) for _ in range(numbers.randint(1, 3))),
        is_pooled=pooled,
        value_bytes=numbers.choice([2, 4]),
        state_per_value=0,
        state_per_row=1,
        averages_per_value=0,
        averages_per_row=0,
        kinds=kinds,
        kernels=(),
        min_columns=8,
    )


def drawn_topology(ranks, per_host, on_gpu, sizes=None, seed=1):
    drawn = {"speeds": speeds(seed), "speeds_source": "drawn"}
    return topology_of(ranks, per_host, on_gpu=on_gpu, batch_size=517, bytes_of_value=sizes, **drawn)


def one_shard(table, topology, kind, kernel, columns, cached):
    """Returns the milliseconds of a shard in each phase, in plain arithmetic, from what it does."""
    speed, world, host = topology.speeds, topology.ranks, topology.per_host
    hosts = world // host
    samples = topology.batch_size * (1 if kind == "data_parallel" else world)
    parts = {"row_wise": world, "table_row_wise": host, "grid_shard": host}.get(kind, 1)
    rows, ids = math.ceil(table.rows / parts), samples * sum(table.hotness) / parts
    bags = samples * len(table.hotness) if table.is_pooled else ids
    unique = rows * (1 - (1 - 1 / rows) ** ids)
    row = columns * table.value_bytes
    slower = 1.0
    if kernel == "fused_uvm":
        slower = topology.gpu_bandwidth / (topology.pcie_bandwidth / 10)
    if kernel == "fused_uvm_caching":
        mixed = cached * topology.gpu_bandwidth + (1 - cached) * topology.pcie_bandwidth
        slower = topology.gpu_bandwidth / (mixed / 10)
    lookup = bags * speed.bag + ids * max(64, row) * speed.lookup_byte * slower
    update = unique * speed.unique_row + (4 * ids * columns + 2 * unique * row * slower) * speed.update_byte
    sizes = topology.bytes_of_value or (table.value_bytes,) * 4
    sent = bags * columns
    own = topology.batch_size * sum(table.hotness) if kind in ("row_wise", "table_row_wise", "grid_shard") else 0
    found = {"input": ids * speed.id + own * speed.bucketed_id, "forward": lookup, "backward": update}
    for phase, whole, summed, byte in (
        ("forward_comms", sizes[0], sizes[2], speed.reduce_scatter_byte),
        ("backward_comms", sizes[1], sizes[3], speed.all_gather_byte),
    ):
        if kind in ("table_row_wise", "grid_shard"):
            across = sent * whole / host * (hosts - 1) / hosts * speed.network_byte
            found[phase] = sent * summed * (host - 1) / host * byte + across
        elif kind == "row_wise" and table.is_pooled:
            link = max(byte, speed.network_byte / host) if hosts > 1 else byte
            found[phase] = sent * summed * (world - 1) / world * link
        else:
            same_host, elsewhere = (host - 1) / world, (world - host) / world
            found[phase] = sent * whole * max(same_host * speed.all_to_all_byte, elsewhere * speed.network_byte)
    if kind == "data_parallel":
        size = table.rows * row
        link = max(speed.all_reduce_byte, speed.network_byte / host) if hosts > 1 else speed.all_reduce_byte
        found |= {"input": 0.0, "forward_comms": 0.0, "backward_comms": 2 * size * (world - 1) / world * link}
        found["backward"] += size * speed.replicated_byte
    return [found[phase] / 1e6 for phase in PHASES]


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("sizes", [None, (2, 2, 1, 4)])
@pytest.mark.parametrize(("number", "per_host"), CLUSTERS)
@pytest.mark.parametrize("on_gpu", [True, False])
def test_costs_are_those_of_each_shard_by_itself(on_gpu, number, per_host, sizes, pooled):
    topology = drawn_topology(number, per_host, on_gpu, sizes, seed=number)
    numbers = random.Random(f"{number} {on_gpu} {pooled}")
    tables = [table(numbers, pooled, place) for place in range(6)]
    options = all_options(tables, topology)
    found = costs(options, tables, topology)
    for index in range(len(options)):
        kind, kernel, columns = KINDS[options.kind[index]], KERNELS[options.kernel[index]], int(options.columns[index])
        cached = float(options.cached[index])
        expected = one_shard(tables[options.table[index]], topology, kind, kernel, columns, cached)
        np.testing.assert_allclose(found[index], expected, rtol=1e-9, err_msg=f"{kind} {kernel} {columns}")


@pytest.mark.parametrize(("draws", "rows"), [(0, 5), (1, 1), (7, 1), (3, 2), (1000, 50), (1000, 1_000_000)])
def test_unique_rows_are_those_that_are_drawn(draws, rows):
    drawn = np.random.default_rng(0).integers(0, rows, (400, draws))
    mean = np.mean([len(set(line.tolist())) for line in drawn])
    assert unique_rows(np.array([float(draws)]), np.array([rows]))[0] == pytest.approx(mean, rel=0.05)


def test_a_step_takes_the_slowest_rank_of_each_phase():
    topology = drawn_topology(2, 2, False)
    tables = [table(random.Random(seed), True, seed) for seed in range(3)]
    planned = [
        PlannedTable(
            rows=one.rows, columns=one.columns, kind=kind, kernel=kernel, shard_columns=one.columns, ranks=where
        )
        for one, (kind, kernel, where) in zip(
            tables,
            [("table_wise", "fused", [1]), ("row_wise", "fused", [0, 1]), ("data_parallel", "dense", [0, 1])],
            strict=True,
        )
    ]
    first, both, copied = (
        np.array(one_shard(one, topology, placed.kind, placed.kernel, one.columns, 0.0))
        for one, placed in zip(tables, planned, strict=True)
    )
    work = DenseWork(flops=6e6, batched_flops=2e5, bytes=3e7, gradients=4000, kernels=0)
    found = step_time(planned, tables, topology, work)
    np.testing.assert_allclose(found.by_rank, [both + copied, first + both + copied], rtol=1e-9)
    dense = 6e6 * topology.speeds.flop + 2e5 * topology.speeds.batched_flop + 3e7 * topology.speeds.dense_byte
    dense += 2 * 4000 / 2 * topology.speeds.all_reduce_byte
    constant = topology.speeds.step
    assert found.total == pytest.approx((first + both + copied).sum() + (dense + constant) / 1e6)


def test_ranks_that_are_slow_in_different_phases_wait_for_both():
    """A rank with many bags and one with many rows to update take the sum, not the slower of the two."""
    topology = dataclasses.replace(
        drawn_topology(2, 2, False), speeds=dataclasses.replace(cpu_speeds(1e7), step=0.0, unique_row=5000.0)
    )
    one = table(random.Random(0), True, 0)
    tables = [
        dataclasses.replace(one, name="bags", rows=4, hotness=(1.0,) * 30),
        dataclasses.replace(one, name="rows", rows=10**6, hotness=(1.0,)),
    ]
    planned = [
        PlannedTable(
            rows=t.rows, columns=t.columns, kind="table_wise", kernel="fused", shard_columns=t.columns, ranks=[r]
        )
        for r, t in enumerate(tables)
    ]
    found = step_time(planned, tables, topology, DenseWork(flops=0, batched_flops=0, bytes=0, gradients=0, kernels=0))
    assert found.total > 1.2 * found.by_rank.sum(axis=1).max()


def test_speeds_of_a_data_sheet_are_its_bandwidths():
    """Reading 2 GB at 2 TB/s takes a millisecond, and NVLink's 900 GB/s are 450 in each direction."""
    found = data_sheet_speeds(memory_bandwidth=2e9, intra_bandwidth=9e8, inter_bandwidth=5e7)
    assert found.lookup_byte * 2e9 / 1e6 == pytest.approx(1.0)
    assert found.all_to_all_byte * 450e6 / 1e6 == pytest.approx(1.0)
    assert found.network_byte * 50e6 / 1e6 == pytest.approx(1.0)


@pytest.mark.parametrize("kernel", [UVM, CACHED])
def test_tables_in_host_memory_are_slower(kernel):
    topology = drawn_topology(4, 4, True)
    rated = rate([dataclasses.replace(table(random.Random(1), True, 0), kinds=("table_wise",))], topology)
    fused, other = rated.cost[rated.options.kernel == 1], rated.cost[rated.options.kernel == kernel]
    assert fused.max() < other.min()
