"""Random tables and clusters to plan, and plans looked at from outside."""

import numpy as np

from torchx_recsys.planner.lower_bound import rate
from torchx_recsys.planner.search import solve_within
from torchx_recsys.planner.tables import KINDS, Table
from torchx_recsys.planner.topology import SYSTEMS, Topology, data_sheet_speeds, speeds_of


def random_tables(number, seed, **changes):
    """Returns tables from a hundred to twenty million rows, of ids in ones and in lists of up to fifty."""
    random = np.random.default_rng(seed)
    fields = {
        "is_pooled": True,
        "value_bytes": 4,
        "state_per_value": 0,
        "state_per_row": 1,
        "averages_per_value": 0,
        "averages_per_row": 0,
        "kinds": KINDS,
        "kernels": (),
        "min_columns": 32,
    } | changes
    return [
        Table(
            name=f"t{index:04}",
            rows=int(10 ** random.uniform(2, 7.3)),
            columns=int(random.choice([16, 32, 64, 128, 256])),
            hotness=(float(random.choice([1, 1, 1, 2, 5, 20, 50])),),
            **fields,
        )
        for index in range(number)
    ]


def topology_of(ranks, per_host, **changes):
    """Returns a topology with the figures of an H100, or of its host's memory where on_gpu is false."""
    fields = {
        "ranks": ranks,
        "per_host": per_host,
        "on_gpu": True,
        "gpu_bytes": 2**36 if changes.get("on_gpu", True) else 0,
        "host_bytes": 2**37,
        "gpu_bandwidth": 3.35e9,
        "pcie_bandwidth": 3.2e7,
        "batch_size": 1024,
        "speeds": speeds_of(SYSTEMS["torchrec"], data_sheet_speeds(3.35e9, 9e8, 5e7)),
    }
    return Topology(**fields | changes)


def gpus(ranks, per_host=8, gib=60.0, host_gib=200.0, **changes):
    """Returns a topology of GPUs with so much memory each, and on their host."""
    memory = {"gpu_bytes": int(gib * 2**30), "host_bytes": int(host_gib * 2**30)}
    return topology_of(ranks, per_host, **memory | changes)


def solve(tables, topology, slower=0.0):
    """Returns the best placement found for tables within all memory of the ranks."""
    memory = np.array([topology.gpu_bytes, topology.host_bytes], dtype=float)
    return solve_within(rate(tables, topology), topology, memory, slower)
