"""The rows of ids: a role in training with nothing to do where rules alone turn ids into rows."""

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
    """The rows of ids in batches, which are rows already: `trainer/rules/` has turned ids into rows.

    A map that gives rows while training is a subclass. All ranks call each method but `begin`, and find the same.

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
        """Yields batches with rows in place of ids, which get their rows in the order of the steps.

        Args:
            batches: This rank's batches.
            steps_done: Steps before the first of them.
            unused_since: Ids that no step after this one had lose their rows with the first batch. Unset: they keep
                them until other ids need the rows.
        """
        return batches

    def looked_up(self, batch: Batch) -> Batch:
        """Returns a batch with rows in place of ids, and changes nothing."""
        return batch

    def begin(self, step: int, reset: Reset) -> None:
        """Begins a step on the next of `batches`: resets the rows of this rank's shards that it gives to other ids."""

    def rewound(self) -> AbstractContextManager[None]:
        """Inside the block the map is that of the latest step that began, as batches are taken ahead of their steps."""
        return nullcontext()

    def end(self) -> None:
        """Goes back for good to the latest step that began, as training ends."""

    def begin_anew(self) -> None:
        """Forgets when ids were used, for a run that counts its steps from 1."""

    def rules(self) -> dict[str, Any]:
        """Returns what decides the rows of ids beside `tensors`, for the train state of a checkpoint."""
        return {"evict": {}, "blocks": {}}

    def tensors(self) -> State:
        """Returns the state by its names in checkpoints, to be saved."""
        return {}

    def restoring(self, saved: Mapping[str, Any], tables: Mapping[str, str] | None = None) -> State:
        """Takes the rules of a checkpoint, and returns the tensors to fill from it before the next batch, as views.

        Args:
            saved: The train state of the checkpoint.
            tables: The table of the checkpoint for each table that gets its ids from another run. Unset: the checkpoint
                is of the same run.
        """
        return {}

    def report(self) -> dict[str, float]:
        """Returns what metrics.jsonl has of the map after a step."""
        return {}


def make_id_map(config: Config, context: DistributedContext, plan: ShardingPlan | None = None) -> IdMap:
    """Makes the map of a configuration; the arguments are those of `IdMap`.

    Raises:
        InputError: The map cannot work with the plan.
    """
    made = next(found(config, "ids"), IdMap)
    return made(config.data, context, plan)
