"""Compares this project's search for plans with TorchRec's.

Writes docs/explanation/planner.md.
Takes two minutes.

Both plan by TorchRec's cost model, and TorchRec's own objects rate both plans. The times come from one machine, so
unlike the output of `docs.generate` they do not follow changes of the code.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.planner.constants import DDR_MEM_BW
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.types import CacheParams, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from benchmarks.machine import describe_machine
from benchmarks.torchrec_estimate import Bandwidths, rate_by_torchrec
from benchmarks.torchrec_planner import topology_of, torchrec_plan
from docs.generate import ROOT, table, write_measured
from torchx_recsys.planner.hardware import H100, HOSTS
from torchx_recsys.planner.search import solve_within
from torchx_recsys.planner.tables import SHARDING_TYPES
from trainer.config.root import Config
from trainer.models.embeddings import name_in_model, table_configs
from trainer.plan.sharding import sharders
from trainer.plan.sharding_plan import shards_of, table_plans, to_sharding_plan
from trainer.plan.tables import tables_to_plan
from trainer.plan.topology import GB_PER_SECOND, topology_to_plan_for

PAGE = ROOT / "docs" / "explanation" / "planner.md"
RESERVE = 0.15  # fraction of a rank's memory reserved for everything that TorchRec's estimate leaves out
WITH_HOST_MEMORY = ("fused", "fused_uvm", "fused_uvm_caching", "dense")
Shape = tuple[int, int, float]  # rows, columns, ids per sample


@dataclass(frozen=True, kw_only=True)
class Case:
    """Tables and ranks to plan.

    Attributes:
        name: The purpose of the case.
        tables: Rows, columns and hotness of each table.
        ranks: Number of ranks.
        per_host: Ranks of each host.
        gib: GPU memory of a rank.
        kernels: Kernels to choose from; empty for kernels without host memory.
    """

    name: str
    tables: list[Shape]
    ranks: int
    per_host: int
    gib: float = 80.0
    kernels: tuple[str, ...] = ()

    def config(self) -> Config:
        """Returns the configuration of the case."""
        sparse = {
            f"t{number:03}": {"rows": rows, "dimension": columns, "hotness": hotness}
            for number, (rows, columns, hotness) in enumerate(self.tables)
        }
        planner: dict[str, Any] = {
            "memory_gib": self.gib,
            "sharding_types": list(SHARDING_TYPES),
            "hardware": "h100",
            "tables": {name: {"compute_kernels": list(self.kernels)} for name in sparse},
        }
        data = {"train": ["unread"], "global_batch_size": 1024 * self.ranks, "dense": {"d": {}}, "sparse": sparse}
        optimizer = {"sparse": {"name": "rowwise_adagrad"}}
        return Config.model_validate({"data": data, "planner": planner, "optimizer": optimizer})

    def topology(self) -> Bandwidths:
        """Returns the ranks of the case, with the bandwidths of their hosts."""
        config, host = self.config(), HOSTS["h100"]
        found = topology_to_plan_for(
            config.data, config.planner, config.comms, config.train, self.ranks, self.per_host, "cuda"
        )
        return Bandwidths.of(
            replace(found, gpu_bytes=int((1 - RESERVE) * found.gpu_bytes)),
            host_bandwidth=DDR_MEM_BW,
            intra_bandwidth=H100.nvlink_gb_per_second * GB_PER_SECOND,
            inter_bandwidth=host.network_gb_per_second_per_gpu * GB_PER_SECOND,
        )


def random_tables(number: int, seed: int, columns: tuple[int, ...], largest: float = 7.0) -> list[Shape]:
    """Returns tables of 10 to `10 ** largest` rows, with single ids or lists."""
    random = np.random.default_rng(seed)
    return [
        (int(10 ** random.uniform(1, largest)), int(random.choice(columns)), float(random.choice([1, 1, 1, 2, 10, 40])))
        for _ in range(number)
    ]


def cases() -> list[Case]:
    """Returns the cases. TorchRec's planner finishes each in minutes."""
    usual = (64, 128)
    skewed = [(40_000_000, 128, 1.0), (10_000_000, 128, 50.0), *random_tables(10, 3, usual, 5)]
    return [
        Case(name="26 tables", tables=random_tables(26, 0, usual), ranks=8, per_host=8),
        Case(name="26 tables, another seed", tables=random_tables(26, 1, usual), ranks=8, per_host=8),
        Case(name="8 tables", tables=random_tables(8, 2, usual), ranks=4, per_host=4),
        Case(name="40 tables, 2 ranks", tables=random_tables(40, 4, usual), ranks=2, per_host=2),
        Case(name="two large of 12", tables=skewed, ranks=8, per_host=8),
        Case(name="two large of 12, two hosts", tables=skewed, ranks=16, per_host=8),
        Case(name="narrow", tables=random_tables(20, 5, (8, 16, 32)), ranks=8, per_host=8),
        Case(name="wide", tables=random_tables(16, 6, (256, 512)), ranks=8, per_host=8),
        Case(name="two hosts", tables=random_tables(16, 7, usual), ranks=16, per_host=8),
        Case(name="four hosts of 4", tables=random_tables(16, 8, usual), ranks=16, per_host=4),
        Case(name="50 tables, two hosts", tables=random_tables(50, 11, usual), ranks=16, per_host=8),
        Case(name="100 tables, two hosts", tables=random_tables(100, 12, usual), ranks=16, per_host=8),
        Case(name="50 tables, eight hosts", tables=random_tables(50, 13, usual), ranks=64, per_host=8),
        Case(name="little memory", tables=random_tables(16, 9, usual, 7.4), ranks=4, per_host=4, gib=6.0),
        Case(
            name="tables on the host",
            tables=random_tables(10, 10, usual, 7.6),
            ranks=4,
            per_host=4,
            gib=4.0,
            kernels=WITH_HOST_MEMORY,
        ),
    ]


def main() -> None:
    """Plans all cases and rewrites the table."""
    rows = []
    for case in cases():
        ours, theirs = (compare(case, planner) for planner in (search_plan, torchrec_plan))
        rows.append([case.name, f"{len(case.tables)} x {case.ranks}", *_cells(ours, theirs)])
        print(*rows[-1], sep="  ", flush=True)
    headers = ["Case", "Tables x ranks", "ms, TorchRec", "ms, search", "Change", "s, TorchRec", "s, search"]
    machine = describe_machine()
    write_measured(PAGE, "planners", f"{table(headers, rows)}\n\nTimes of one core ({machine['processor']}).")


def _cells(ours: tuple[float, float], theirs: tuple[float, float]) -> list[str]:
    (cost, seconds), (other_cost, other_seconds) = ours, theirs
    return [
        f"{other_cost:.4f}",
        f"{cost:.4f}",
        f"{cost / other_cost - 1:+.1%}",
        f"{other_seconds:.1f}",
        f"{seconds:.1f}",
    ]


def search_plan(model: nn.Module, config: Config, topology: Bandwidths) -> ShardingPlan:
    """Returns the plan of this project's search, by TorchRec's estimates."""
    tables = tables_to_plan(model, config, config.planner)
    memory = np.array([topology.gpu_bytes, topology.host_bytes], dtype=float)
    return to_sharding_plan(solve_within(rate_by_torchrec(tables, topology), topology, memory), tables, model)


def compare(case: Case, planner: Callable[[nn.Module, Config, Bandwidths], ShardingPlan]) -> tuple[float, float]:
    """Returns TorchRec's estimate for the slowest rank in milliseconds, and the seconds of planning."""
    config, topology = case.config(), case.topology()
    model = Tables(config)
    start = time.process_time()
    plan = planner(model, config, topology)
    seconds = time.process_time() - start
    return rated_by_torchrec(plan, config, model, topology), seconds


class Tables(nn.Module):
    """A model of tables alone, which are on the meta device."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(table_configs(config.data, config.model), device=torch.device("meta"))


def rated_by_torchrec(plan: ShardingPlan, config: Config, model: nn.Module, topology: Bandwidths) -> float:
    """Returns the milliseconds of the slowest rank: the sum of TorchRec's estimates of the rank's shards."""
    placed = table_plans(plan)
    features = config.data.features_of_tables()
    constraints = {
        name_in_model(name): ParameterConstraints(
            sharding_types=[table.sharding_type],
            compute_kernels=[table.compute_kernel],
            min_partition=shards_of(table)[0].shard_sizes[1] if shards_of(table) else None,
            pooling_factors=[config.data.sparse[feature].hotness for feature in features[name]],
            cache_params=CacheParams(load_factor=table.cache_params.load_factor) if table.cache_params else None,
        )
        for name, table in placed.items()
    }
    of_torchrec = topology_of(topology)
    estimator = EmbeddingPerfEstimator(of_torchrec, constraints)
    enumerator = EmbeddingEnumerator(of_torchrec, topology.batch_size, constraints, estimator)
    load = np.zeros(topology.ranks)
    for option in enumerator.enumerate(model, sharders(config.comms)):
        for shard, rank in zip(option.shards, placed[option.name].ranks or [], strict=True):
            load[rank] += shard.perf.total  # pyrefly: ignore[missing-attribute]
    return float(load.max())


if __name__ == "__main__":
    main()
