"""The time of a step under a plan: its phases on every rank, and what bounds it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torchrec.distributed.types import ShardingPlan

from trainer.plan.dense_work import DenseWork
from trainer.plan.fitting import Problem
from trainer.plan.plan_file import even_table, table_plans
from trainer.plan.search.options import KERNELS, KINDS, OF_ROWS, Options
from trainer.plan.search.problem import Ranks, Table
from trainer.plan.search.rated import phases_of
from trainer.plan.search.step_costs import MILLISECONDS, ring
from trainer.plan.search.systems import latency
from trainer.plan.sharding_plan import PlannedTable


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The time of a step under a plan, in milliseconds.

    Attributes:
        phases: The phases of tables and exchanges.
        by_rank: Time of each rank in each phase, `[R, phases]`.
        dense: Time of the dense part: its products, the bytes of its operations, the all-reduce of its gradients.
        latency: Time that exchanges take however little is sent.
        constant: Time of everything else.
        source: Where the speeds are from, in words to print.
    """

    phases: Sequence[str]
    by_rank: np.ndarray
    dense: float
    latency: float
    constant: float
    source: str

    @property
    def slowest(self) -> np.ndarray:
        """Time of the slowest rank in each phase, `[phases]`: ranks wait for each other in every exchange."""
        return self.by_rank.max(axis=0)

    @property
    def total(self) -> float:
        """Time of the step."""
        return float(self.slowest.sum()) + self.dense + self.latency + self.constant


def time_of_plan(plan: ShardingPlan, problem: Problem) -> StepTime:
    """Returns the time of a step under a plan, however that was made."""
    plans = table_plans(plan)
    planned = [even_table(plans[table.name], (table.rows, table.columns)) for table in problem.tables]
    return step_time(planned, problem.tables, problem.ranks, problem.dense)


def step_time(
    planned: Sequence[PlannedTable], tables: Sequence[Table], ranks: Ranks, dense: DenseWork | None
) -> StepTime:
    """Returns the time of a step under a plan.

    Args:
        planned: The placement of each table.
        tables: The tables, in the same order.
        ranks: The ranks.
        dense: What the dense part does; without speeds of its own, TorchRec's estimate leaves it out.
    """
    names, phases = phases_of(_chosen(planned), tables, ranks)
    by_rank = np.zeros((ranks.number, len(names)))
    for table, placed in enumerate(planned):
        np.add.at(by_rank, np.asarray(placed.ranks), phases[table])
    of_dense, of_latency, constant = beside_tables(ranks, dense)
    return StepTime(
        phases=names,
        by_rank=by_rank,
        dense=of_dense,
        latency=of_latency,
        constant=constant,
        source=ranks.speeds_source,
    )


def beside_tables(ranks: Ranks, dense: DenseWork | None) -> tuple[float, float, float]:
    """Returns the milliseconds of a step's dense part, of the latency of exchanges, and of everything but tables."""
    speeds, system = ranks.speeds, ranks.system
    if speeds is None or dense is None:
        return 0.0, 0.0, 0.0
    products = dense.flops * speeds.flop + dense.batched_flops * speeds.batched_flop
    computed = products + dense.bytes * speeds.dense_byte
    gradients = float(2 * ring(np.array(dense.gradients), ranks, speeds, speeds.all_reduce_byte))
    overlaps = system is not None and system.overlaps_gradients
    of_dense = max(computed, gradients) if overlaps else computed + gradients
    of_latency = latency(ranks.per_host, ranks.hosts) if system else 0.0
    return MILLISECONDS * of_dense, MILLISECONDS * of_latency, MILLISECONDS * speeds.step


def _chosen(planned: Sequence[PlannedTable]) -> Options:
    """Returns the options of a plan, one for each table."""
    kind = np.array([KINDS.index(table.kind) for table in planned])
    columns = np.array([table.shard_columns for table in planned])
    pieces = np.array([table.columns for table in planned]) // columns
    shards = np.array([len(table.ranks) for table in planned])
    parts = np.where(np.isin(kind, OF_ROWS), shards // pieces, 1)
    return Options(
        table=np.arange(len(planned)),
        kind=kind,
        kernel=np.array([KERNELS.index(table.kernel) for table in planned]),
        columns=columns,
        cached=np.array([table.cached or 0.0 for table in planned]),
        pieces=pieces,
        shards=shards,
        rows=-(-np.array([table.rows for table in planned]) // parts),
    )
