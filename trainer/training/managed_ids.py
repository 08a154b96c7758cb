"""Managed ids: raw ids get their rows of a table while training, the same on every rank."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torchrec.distributed.types import ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.checkpoint.state_dict import State
from trainer.config.data import DataConfig
from trainer.core.distributed import DistributedContext, background_group, gather_to_all
from trainer.core.errors import InputError
from trainer.data.batch import Batch
from trainer.data.host_tensors import to_tensor
from trainer.data.jagged import with_values
from trainer.models.embeddings import name_in_model, table_of_name
from trainer.optim.table_averages import CACHING
from trainer.rules.managed import EVICTED, LAST_USED, OVERFLOWED, USED, Change, RowMap

Reset = Callable[[str, Tensor, int], None]
DEFAULT, EARLIER_DEFAULT = "least_used", "least_recent"  # of `evict`; checkpoints of the earlier do not record it


def check_managed(config: DataConfig, plan: ShardingPlan) -> None:
    """Refuses managed ids of tables with a cache: a reset of a row would miss the cached copy.

    Raises:
        InputError: The plan has such a table.
    """
    for tables in plan.plan.values():
        for name, table in tables.items():  # pyrefly: ignore[missing-attribute]
            if table_of_name(name) in config.managed_tables and table.compute_kernel in CACHING:
                raise InputError(
                    f"table '{table_of_name(name)}' has managed ids and the compute kernel '{table.compute_kernel}', "
                    "whose cache hides its rows; set planner.tables.NAME.compute_kernels to fused or fused_uvm"
                )


class ManagedIds:
    """The rows of all managed ids, replicated: every rank makes the same changes from the ids of all ranks.

    TorchRec's own are not used: those with eviction need CUDA kernels, and place an id by the number of ranks.

    Batches are taken ahead of their step. So a row is reset when the step begins that gives the row to another id. A
    save, which looks at the map between two steps, goes back to the latest step that began.

    Args:
        config: The data.
        context: This process among the ranks.
    """

    def __init__(self, config: DataConfig, context: DistributedContext) -> None:
        self._features = config.managed_tables
        features = {table: config.sparse[names[0]] for table, names in self._features.items()}
        self._maps = {table: RowMap(feature.rows, feature.evict or DEFAULT) for table, feature in features.items()}
        self._kept = [table for table, feature in features.items() if feature.evict is None]
        self._context = context
        self._group = background_group(context) if self._maps and context.world_size > 1 else None
        self._ahead: deque[tuple[int, dict[str, Change]]] = deque()  # changes of the steps that have not begun

    def rules(self) -> dict[str, str]:
        """Returns `evict` of each table, for checkpoints."""
        return {table: one.evict for table, one in self._maps.items()}

    def keep_rules(self, saved: Mapping[str, str]) -> None:
        """Takes the `rules` of a checkpoint for tables whose configuration leaves `evict` unset."""
        for table in self._kept:
            self._maps[table].evict = saved.get(table, EARLIER_DEFAULT)

    def batches(self, batches: Iterator[Batch], steps_done: int, unused_since: int | None = None) -> Iterator[Batch]:
        """Yields batches with rows in place of raw ids, which get their rows in the order of the steps.

        Args:
            batches: This rank's batches.
            steps_done: Steps before the first of them.
            unused_since: Ids that no step after this one had lose their rows with the first batch. Unset: they keep
                them until other ids need the rows.
        """
        return self._mapped(batches, steps_done, unused_since) if self._maps else batches

    def _mapped(self, batches: Iterator[Batch], steps_done: int, unused_since: int | None) -> Iterator[Batch]:
        for step, batch in enumerate(batches, steps_done + 1):
            found = self._global_ids(batch.sparse)
            since = unused_since if step == steps_done + 1 else None
            changes = {table: self._maps[table].update(*found[table], step, since) for table in self._maps}
            self._ahead.append((step, changes))
            yield self.looked_up(batch)

    def looked_up(self, batch: Batch) -> Batch:
        """Returns a batch with rows in place of raw ids, and changes nothing: new ids get the row for unseen ids."""
        if not self._maps:
            return batch
        values = batch.sparse.values()
        rows = to_tensor(values.numpy().astype(np.int32))
        parts = dict(zip(batch.sparse.keys(), _split(batch.sparse), strict=True))
        of_rows = dict(zip(batch.sparse.keys(), _split(batch.sparse, rows), strict=True))
        for table, names in self._features.items():
            for name in names:
                of_rows[name].copy_(torch.from_numpy(self._maps[table].rows_of(parts[name].numpy())))
        return replace(batch, sparse=with_values(batch.sparse, rows))

    def begin(self, step: int, reset: Reset) -> None:
        """Begins a step: resets the rows that the step gives to other ids.

        Args:
            step: Its number.
            reset: Sets rows of a table to initial values, and clears their optimizer state.
        """
        if not self._maps:
            return
        expected, changes = self._ahead.popleft()
        assert expected == step, "steps take batches in order"
        for table, change in changes.items():
            if len(change.evicted):
                reset(table, torch.from_numpy(change.evicted), step)

    @contextmanager
    def rewound(self) -> Iterator[None]:
        """Inside the block the map is that of the latest step that began."""
        self._undo()
        try:
            yield
        finally:
            for _, changes in self._ahead:
                for table, change in changes.items():
                    self._maps[table].redo(change)

    def end(self) -> None:
        """Goes back for good to the latest step that began, as training ends."""
        self._undo()
        self._ahead.clear()

    def begin_anew(self) -> None:
        """Forgets when ids were used, for a run that counts its steps from 1."""
        for one in self._maps.values():
            one.state[LAST_USED] = 0
            one.totals[[EVICTED, OVERFLOWED]] = 0

    def tensors(self) -> State:
        """Returns the state by its names in checkpoints, as views that may be filled before the next batch."""
        found: State = {}
        for table, one in self._maps.items():
            one.forget_index()
            values = dict(zip(("ids", "last_used", "counts"), one.state, strict=True)) | {"totals": one.totals}
            name = f"managed.{name_in_model(table)}"
            found |= {f"{name}.{key}": torch.from_numpy(value) for key, value in values.items()}
        return found

    def report(self) -> dict[str, float]:
        """Returns the rows in use and free, the evictions, and the ids without a row, of each table."""
        found: dict[str, float] = {}
        for table, one in self._maps.items():
            totals = self._ahead[0][1][table].totals_before if self._ahead else one.totals
            names = {"used": USED, "evicted": EVICTED, "overflowed": OVERFLOWED}
            found |= {f"ids/{table}/{name}": float(totals[place]) for name, place in names.items()}
            found[f"ids/{table}/free"] = float(one.state.shape[1] - 1 - totals[USED])
        return found

    def _undo(self) -> None:
        for _, changes in reversed(self._ahead):
            for table, change in changes.items():
                self._maps[table].undo(change)

    def _global_ids(self, sparse: KeyedJaggedTensor) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Returns the distinct ids of the global batch for each table, ascending, and how often each occurs."""
        parts = dict(zip(sparse.keys(), _split(sparse), strict=True))
        here = {
            table: np.unique(torch.cat([parts[name] for name in names]).numpy(), return_counts=True)
            for table, names in self._features.items()
        }
        if self._group is None:
            return here
        every = gather_to_all(here, self._context, self._group)
        return {table: _joined([one[table] for one in every]) for table in self._maps}


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    ids, places = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
    counts = np.zeros(len(ids), np.int64)
    np.add.at(counts, places, np.concatenate([counts for _, counts in parts]))
    return ids, counts


def _split(sparse: KeyedJaggedTensor, values: Tensor | None = None) -> list[Tensor]:
    """Returns the values of each feature, as views."""
    lengths = sparse.lengths().view(len(sparse.keys()), -1).sum(1).tolist()
    return [*torch.split(sparse.values() if values is None else values, lengths)]
