"""Managed ids: raw ids get rows of a table during training, the same rows on any number of ranks."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchrec.distributed.types import ParameterSharding, ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.batches.batch import Batch, to_tensor, with_values
from trainer.checkpoint.state_dict import State
from trainer.config.data import DataConfig
from trainer.core.distributed import DistributedContext, with_rows_elsewhere
from trainer.core.errors import InputError
from trainer.extensions.managed_ids.admission import Waiting
from trainer.extensions.managed_ids.blocks import Blocks
from trainer.extensions.managed_ids.eviction import LAST_USED
from trainer.extensions.managed_ids.exchange import Exchange, IdRequests, RowHolders
from trainer.extensions.managed_ids.row_map import EVICTED, OVERFLOWED, USED, Change, RowMap
from trainer.models.embeddings import name_in_model
from trainer.optim.averages import CACHING
from trainer.plan.sharding_plan import table_plans
from trainer.training.id_map import IdMap, Reset

WAITING = "waiting_"  # begins the names of what belongs to ids that wait for a row
DEFAULT, EARLIER_DEFAULT = "least_used", "least_recent"  # of `evict`; checkpoints of the earlier do not record it


@dataclass(frozen=True)
class _Step:
    """What the ids of a step change, of the rows on this rank.

    Attributes:
        number: The number of the step.
        changes: The changes of the maps, in their order.
        evicted: The rows of local shards that the step gives to other ids, by table.
        totals_before: Totals of all ranks before the step, `[maps, 3]`.
    """

    number: int
    changes: list[tuple[RowMap, Change]]
    evicted: dict[str, np.ndarray]
    totals_before: np.ndarray


class ManagedIds(IdMap):
    """The rows of all managed ids, spread over the ranks: each rank gives the rows of its blocks of each table.

    A rank sends the distinct ids of its batch, with their counts, to the ranks that assign their rows, and gets rows
    back. Why not TorchRec's managed collision: with eviction it needs CUDA kernels, and an id's row depends on the
    number of ranks.

    Batches are taken ahead of their step. So a row is reset when the step begins that gives the row to another id. A
    save, which looks at the map between two steps, goes back to the latest step that began.

    Args:
        data: The data, of which at least one table has managed ids.
        context: As for `IdMap`.
        plan: As for `IdMap`.

    Raises:
        InputError: A table with managed ids has a cache.
    """

    def __init__(self, data: DataConfig, context: DistributedContext, plan: ShardingPlan | None = None) -> None:
        plans = table_plans(plan) if plan else {}
        self._context, self._features = context, data.managed_tables
        features = {table: data.sparse[names[0]] for table, names in self._features.items()}
        self._kept = [table for table, feature in features.items() if feature.evict is None]
        self._admit_after = {table: feature.admit_after for table, feature in features.items() if feature.admit_after}
        self._maps: dict[str, RowMap] = {}
        self._waiting: dict[str, Waiting] = {}
        self._tensors: State = {}
        for table, feature in features.items():
            self._begin_map(table, Blocks.of_table(feature.rows), feature.evict or DEFAULT)
        self._totals = np.zeros((len(self._all_maps()), 3), np.int64)  # of all ranks, when they were last summed
        self._tensors |= {
            f"managed.{name}totals": torch.from_numpy(totals)
            for name, totals in zip(self._all_maps(), self._totals, strict=True)
        }
        self._exchange = Exchange(context)
        self._holders = {
            table: RowHolders(_without_cache(table, plans[table]), feature.rows, context.world_size)
            for table, feature in features.items()
            if plans
        }
        self._ahead: deque[_Step] = deque()  # the steps that have not begun

    def rules(self) -> dict[str, Any]:
        """Returns `evict` and the blocks of each table, for checkpoints."""
        return {
            "evict": {table: one.evict for table, one in self._maps.items()},
            "blocks": {table: [one.blocks.number, *one.blocks.ends] for table, one in self._maps.items()},
        }

    def restoring(self, saved: Mapping[str, Any], tables: Mapping[str, str] | None = None) -> State:
        """Takes the blocks of a checkpoint, with new rows beside them, and `evict` of the same run if it is unset."""
        for table, one in [*self._maps.items()]:
            source = table if tables is None else tables.get(table)
            if source is None:
                continue
            rows, evict = one.blocks.rows, one.evict
            if tables is None and table in self._kept:
                evict = saved.get("evict", {}).get(table, EARLIER_DEFAULT)
            number, *ends = saved.get("blocks", {}).get(source, [1, rows])  # earlier, a table was one block
            self._begin_map(table, Blocks(number, tuple(ends)).grown(rows), evict)
        return self.tensors()

    def batches(self, batches: Iterator[Batch], steps_done: int, unused_since: int | None = None) -> Iterator[Batch]:
        """Yields batches with rows in place of raw ids, as `IdMap` does."""
        for step, batch in enumerate(batches, steps_done + 1):
            requests = self._requests(batch.sparse)
            since = unused_since if step == steps_done + 1 else None
            totals = self._totals + requests.notes.sum(0).reshape(-1, 3)
            changes, evicted = [], {}
            for table, ids, seen in zip(self._maps, requests.arrived, requests.seen, strict=True):
                of_table = self._update(table, *ids, step, seen, since)
                changes += of_table
                evicted[table] = of_table[0][1].evicted
            self._ahead.append(_Step(step, changes, self._to_shards(evicted), totals))
            yield self._with_rows(batch, requests)

    def _update(
        self, table: str, ids: np.ndarray, counts: np.ndarray, step: int, seen: int, unused_since: int | None
    ) -> list[tuple[RowMap, Change]]:
        """Gives rows to ids of a table; the first change is of its rows."""
        one, waiting = self._maps[table], self._waiting.get(table)
        if waiting:
            return waiting.update(one, ids, counts, step, seen, unused_since)
        return [(one, one.update(ids, counts, step, seen, unused_since))]

    def looked_up(self, batch: Batch) -> Batch:
        """Returns a batch with rows in place of raw ids, and changes nothing: new ids get the row for unseen ids."""
        return self._with_rows(batch, self._requests(batch.sparse))

    def begin(self, step: int, reset: Reset) -> None:
        """Begins a step: resets the rows of this rank's shards that the step gives to other ids."""
        begun = self._ahead.popleft()
        assert begun.number == step, "steps take batches in order"
        for table, rows in begun.evicted.items():
            if len(rows):
                reset(table, torch.from_numpy(rows), step)

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """Inside the block the map has the state of the latest step that began."""
        self._undo()
        try:
            yield
        finally:
            for step in self._ahead:
                for one, change in step.changes:
                    one.redo(change)

    def end(self) -> None:
        """Drops what was looked up ahead, when training ends: the state is that of the latest step that began."""
        self._undo()
        self._ahead.clear()

    def begin_anew(self) -> None:
        """Forgets when ids were used, for a run that counts its steps from 1."""
        for one in self._all_maps().values():
            one.state[LAST_USED] = 0
        self._totals[:, [EVICTED, OVERFLOWED]] = 0

    def tensors(self) -> State:
        """Returns the state by its names in checkpoints, as views."""
        return dict(self._tensors)

    def report(self) -> dict[str, float]:
        """Returns the rows in use and free, the evictions, and the ids without a row or waiting, of each table."""
        totals = self._ahead[0].totals_before if self._ahead else self._summed()
        found: dict[str, float] = {}
        by_name = dict(zip(self._all_maps(), totals.tolist(), strict=True))
        for table, one in self._maps.items():
            of_table = by_name[_name(table)]
            names = {"used": USED, "evicted": EVICTED, "overflowed": OVERFLOWED}
            found |= {f"ids/{table}/{name}": float(of_table[place]) for name, place in names.items()}
            found[f"ids/{table}/free"] = float(one.blocks.rows - 1 - of_table[USED])
            if table in self._waiting:
                found[f"ids/{table}/waiting"] = float(by_name[_name(table, WAITING)][USED])
        return found

    def _undo(self) -> None:
        for step in reversed(self._ahead):
            for one, change in reversed(step.changes):
                one.undo(change)
        self._totals[:] = self._summed()
        for one in self._all_maps().values():
            one.totals[:] = 0

    def _summed(self) -> np.ndarray:
        """Returns the totals of all ranks, `[maps, 3]`."""
        return self._totals + self._exchange.sum(self._gained())

    def _gained(self) -> np.ndarray:
        return np.stack([one.totals for one in self._all_maps().values()])

    def _all_maps(self) -> dict[str, RowMap]:
        """Returns the maps of rows and those of waiting ids, by the beginning of their names in checkpoints."""
        waiting = {_name(table, WAITING): one.counted for table, one in self._waiting.items()}
        return {_name(table): one for table, one in self._maps.items()} | waiting

    def _begin_map(self, table: str, blocks: Blocks, evict: str) -> None:
        ranks, first = self._context.world_size, self._first_rank(table)
        part = (self._context.rank - first) % ranks
        self._maps[table] = RowMap(blocks, evict, part, ranks)
        if after := self._admit_after.get(table):
            self._waiting[table] = Waiting(RowMap(blocks, evict, part, ranks), after)
        owners = [(rows, (first + one) % ranks) for one in range(ranks) for rows in blocks.part(one, ranks).rows]
        for start in (_name(table), _name(table, WAITING)) if after else (_name(table),):
            for key, values in zip(("ids", "last_used", "counts"), self._all_maps()[start].state, strict=True):
                name = f"managed.{start}{key}"
                self._tensors.pop(name, None)
                if len(values):  # without rows of the table this rank lacks the name, as of a table without a shard
                    self._tensors[name] = with_rows_elsewhere(torch.from_numpy(values), owners, self._context)

    def _first_rank(self, table: str) -> int:
        """Returns the rank with the first blocks of a table, so that small tables are on different ranks."""
        return [*self._features].index(table) % self._context.world_size

    def _requests(self, sparse: KeyedJaggedTensor) -> IdRequests:
        parts = dict(zip(sparse.keys(), _split(sparse), strict=True))
        ids = [torch.cat([parts[name] for name in names]).numpy() for names in self._features.values()]
        return IdRequests(
            self._exchange, ids, [self._ranks_of(table) for table in self._maps], self._gained().reshape(-1)
        )

    def _ranks_of(self, table: str) -> Callable[[np.ndarray], np.ndarray]:
        """Returns a function that returns the ranks which give rows to ids."""
        ranks, first, blocks = self._context.world_size, self._first_rank(table), self._maps[table].blocks
        return lambda ids: (blocks.part_of(ids, ranks) + first) % ranks

    def _with_rows(self, batch: Batch, requests: IdRequests) -> Batch:
        """Returns a batch with the rows that its ids have."""
        arrived = zip(self._maps.values(), requests.arrived, strict=True)
        found = requests.rows([one.rows_of(ids) for one, (ids, _) in arrived])
        rows = to_tensor(batch.sparse.values().numpy().astype(np.int32))
        parts = dict(zip(batch.sparse.keys(), _split(batch.sparse, rows), strict=True))
        for names, of_table in zip(self._features.values(), found, strict=True):
            of_features = [parts[name] for name in names]
            sizes = [len(one) for one in of_features]
            for part, values in zip(of_features, torch.from_numpy(of_table).split(sizes), strict=True):
                part.copy_(values)
        return replace(batch, sparse=with_values(batch.sparse, rows))

    def _to_shards(self, evicted: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Sends the rows that were taken from ids to the ranks that hold these rows, and returns those of this rank."""
        held = [self._holders[table].of(rows) for table, rows in evicted.items()]
        ranks, rows = (np.concatenate(one) for one in zip(*held, strict=True))
        tables = np.repeat(np.arange(len(held)), [len(of_table) for _, of_table in held])
        order = ranks.argsort(kind="stable")
        to = np.bincount(ranks, minlength=self._context.world_size)
        come = self._exchange.rows(to[:, None])[:, 0]
        taken = self._exchange.rows(np.stack([tables, rows], 1)[order], to, come)
        return {table: taken[taken[:, 0] == number, 1] for number, table in enumerate(evicted)}


def _name(table: str, kind: str = "") -> str:
    """Returns the beginning of the names of a map's tensors in checkpoints, behind `managed.`."""
    return f"{name_in_model(table)}.{kind}"


def _without_cache(table: str, plan: ParameterSharding) -> ParameterSharding:
    """Refuses a table with a cache: a reset of a row would miss the cached copy.

    Raises:
        InputError: The plan gives the table one.
    """
    if plan.compute_kernel in CACHING:
        raise InputError(
            f"table '{table}' has managed ids and the compute kernel '{plan.compute_kernel}', "
            "whose cache hides its rows; set planner.tables.NAME.compute_kernels to fused or fused_uvm"
        )
    return plan


def _split(sparse: KeyedJaggedTensor, values: Tensor | None = None) -> list[Tensor]:
    """Returns the values of each feature, as views."""
    lengths = sparse.lengths().view(len(sparse.keys()), -1).sum(1).tolist()
    return [*torch.split(sparse.values() if values is None else values, lengths)]
