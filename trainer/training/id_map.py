"""The id map: gives ids their rows during training, where a configuration has managed ids.

`IdMap` is the null object. Where the rules of `trainer/rules/` alone decide the rows, batches arrive with rows and
nothing is left to do. The extension `managed_ids` has the subclass that assigns rows as ids appear.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torchrec.distributed.types import ShardingPlan

from trainer.batches.batch import Batch
from trainer.checkpoint.state_dict import State
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext
from trainer.training.extensions import found

Reset = Callable[[str, Tensor, int], None]
"""Sets rows of a table, `[N]`, to initial values in a step, and clears their optimizer state."""


class IdMap:
    """An id map with nothing to do: `trainer/rules/` has turned the ids of batches into rows.

    A subclass assigns rows during training. All ranks call each method but `begin`, and assign the same rows.

    Args:
        data: The data.
        context: This process among the ranks.
        plan: The placement of the tables. Unset: nothing is trained, and no row is reset.

    Raises:
        InputError: The map cannot work with the plan.
    """

    def __init__(self, data: DataConfig, context: DistributedContext, plan: ShardingPlan | None = None) -> None:
        pass

    def batches(self, batches: Iterator[Batch], steps_done: int, unused_since: int | None = None) -> Iterator[Batch]:
        """Yields batches with rows in place of ids; ids get their rows in the order of the steps.

        Args:
            batches: This rank's batches.
            steps_done: Number of steps before the first batch.
            unused_since: At the first batch, ids lose their rows if no step after this one had them. Unset: ids keep
                their rows until other ids need them.
        """
        return batches

    def looked_up(self, batch: Batch) -> Batch:
        """Returns a batch with rows in place of ids, without a change to the map."""
        return batch

    def begin(self, step: int, reset: Reset) -> None:
        """Begins a step on the next of `batches`: resets those rows of this rank's shards that other ids get."""

    def rewound(self) -> AbstractContextManager[None]:
        """Inside the block the map has the state of the latest step that began.

        Batches are mapped ahead of their steps, so the map may know ids of later steps already. Evaluations and
        checkpoints must not see these.
        """
        return nullcontext()

    def end(self) -> None:
        """Drops what was looked up ahead, when training ends: the state is that of the latest step that began."""

    def begin_anew(self) -> None:
        """Forgets when ids were used, for a run that counts its steps from 1."""

    def rules(self) -> dict[str, Any]:
        """Returns, for the train state of a checkpoint, whatever decides the rows of ids beside `tensors`."""
        return {"evict": {}, "blocks": {}}

    def tensors(self) -> State:
        """Returns the state to save, by names in checkpoints."""
        return {}

    def restoring(self, saved: Mapping[str, Any], tables: Mapping[str, str] | None = None) -> State:
        """Adopts the rules of a checkpoint, and returns the tensors to fill from it before the next batch, as views.

        Args:
            saved: The train state of the checkpoint.
            tables: The source table in the checkpoint, for each table that gets its ids from another run. Unset: the
                checkpoint belongs to this run.
        """
        return {}

    def report(self) -> dict[str, float]:
        """Returns the figures of the map for metrics.jsonl after a step."""
        return {}


def make_id_map(config: Config, context: DistributedContext, plan: ShardingPlan | None = None) -> IdMap:
    """Makes the map of a configuration; the arguments are those of `IdMap`.

    Raises:
        InputError: The map cannot work with the plan.
    """
    made = next(found(config, "ids"), IdMap)
    return made(config.data, context, plan)
