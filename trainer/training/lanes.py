"""Divides an epoch into lanes, the same on any number of ranks."""

from trainer.checkpoint.store import Checkpoint
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError
from trainer.data.dataset import FileSet
from trainer.data.order import Lanes, check_lanes, default_lanes
from trainer.models.losses_over_samples import check_units
from trainer.training.micro_batches import check_micro_batches
from trainer.training.resume import check_start


def plan_lanes(config: Config, files: FileSet, start: Checkpoint | None, context: DistributedContext) -> Lanes:
    """Returns the lanes of a run; one that is resumed keeps those of its checkpoint.

    Raises:
        InputError: Lanes, batches and ranks do not divide one another, or the checkpoint is of other data.
    """
    # A resumed run keeps its lanes, whatever its number of ranks, and with them its order of samples.
    recorded = start.train_state["lanes"] if start else default_lanes(context.world_size)
    number = config.data.lanes or recorded
    check_lanes(number, context.world_size, config.data.global_batch_size)
    lanes = Lanes(files.rows, number, config.data.global_batch_size, config.data.last_batch == "keep")
    if lanes.steps == 0:
        raise InputError(
            f"data.global_batch_size is {lanes.global_batch_size}, more than the {plural(files.rows, 'sample')} to "
            "train on, and data.last_batch is 'drop'; use a smaller batch or 'keep'"
        )
    check_micro_batches(config.train.micro_batches, lanes, context.world_size)
    check_units(config.named_tasks(), lanes, context.world_size, config.train.micro_batches)
    if start:
        check_start(start, number, config, files)
    return lanes
