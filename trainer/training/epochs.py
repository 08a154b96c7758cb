"""The epochs of a run: its training data, lanes, loader, first step and last step."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.batches.batch import Batch
from trainer.batches.catalogue import Catalogue
from trainer.batches.loader import Loader
from trainer.batches.negatives import Negatives
from trainer.checkpoint.store import Checkpoint
from trainer.config.root import Config
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext, broadcast_when_done
from trainer.core.errors import InputError, NoRows
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import FileSet
from trainer.data.epoch_order import Lanes, check_lanes, default_lanes
from trainer.data.row_groups import find_training_files
from trainer.models.losses import check_units
from trainer.training.evaluate import open_catalogue
from trainer.training.micro_batches import check_micro_batches
from trainer.training.resume import check_start


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    """The samples that a run trains on, in their order, and the range of steps.

    Attributes:
        files: The training data.
        lanes: How the samples are divided into lanes and steps.
        loader: This rank's batches.
        catalogue: All items; None without data.catalogue.
        types: The types of the columns. A run keeps them from its first step on.
        steps_done: Steps that the run took before this job; the next step is `steps_done + 1`.
        last_step: The last step of training.
        steps_before: Steps that the run took on earlier orders of samples, such as earlier days.
        epochs_before: Epochs of these earlier orders.
        state: Entries to add to the train state of each checkpoint.
        evaluated_first: Whether to evaluate the model on these samples before training on them, in place of
            data.validation.
        ends: Name of the segment, such as a day, that ends with the last step; retention uses it. None without one.
        unused_since: At the next step, managed ids lose their rows if no step after this one had them. None keeps all.
    """

    files: FileSet
    lanes: Lanes
    loader: Loader
    catalogue: Catalogue | None
    types: RecordedTypes
    steps_done: int
    last_step: int
    steps_before: int = 0
    epochs_before: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)
    evaluated_first: bool = False
    ends: str | None = None
    unused_since: int | None = None

    def place_of(self, step: int) -> tuple[int, int]:
        """Returns the epoch of a step, and the number of steps before it in that epoch."""
        epoch, epoch_step = divmod(step - 1 - self.steps_before, self.lanes.steps)
        return epoch + self.epochs_before, epoch_step

    def batches(self) -> Generator[Batch, None, None]:
        """Returns this rank's batches of the steps that are left."""
        return self.loader.batches(self.steps_done - self.steps_before, self.last_step - self.steps_before)


def plan_epochs(config: Config, start: Checkpoint | None, context: DistributedContext) -> EpochOrder:
    """Finds the training data and decides the order of its samples, from the first step to the last.

    Raises:
        InputError: The data cannot be used, changed since the checkpoint, or cannot be split over the ranks.
    """
    files = broadcast_when_done(context, lambda: find_training_files(config.data, config.train.seed))
    lanes = plan_lanes(config, files, start, context)
    if start:
        check_start(start, lanes.lanes, config, files)
    steps_done = start.step if start else 0
    last_step = config.train.steps if config.train.steps is not None else (config.train.epochs or 0) * lanes.steps
    if start and steps_done > last_step:
        raise InputError(
            f"--out is '{start.run_url}', where training took {plural(steps_done, 'step')} already, more than the "
            f"{last_step:,} of train.steps or train.epochs; raise them, choose another --out, or evaluate this run "
            "with dlrm.evaluate"
        )
    types = held_types(config, files, "data.train", start)
    catalogue = open_catalogue(config, context, types, files.files[0], start)
    return EpochOrder(
        files=files,
        lanes=lanes,
        loader=open_loader(config, files, lanes, catalogue, context),
        catalogue=catalogue,
        types=types,
        steps_done=steps_done,
        last_step=last_step,
    )


def open_loader(
    config: Config, files: FileSet, lanes: Lanes, catalogue: Catalogue | None, context: DistributedContext
) -> Loader:
    """Opens the loader of this rank's training batches."""
    data, seed = config.data, config.train.seed
    negatives = Negatives(catalogue, data, seed) if catalogue else None
    return Loader(files, data, lanes, context.rank, context.world_size, seed, data.shuffle, negatives, data.balance)


def held_types(
    config: Config, files: FileSet, where: str, start: Checkpoint | None, before: RecordedTypes | None = None
) -> RecordedTypes:
    """Returns the types of a run's columns, and requires them of the data.

    Args:
        config: The configuration.
        files: The training data now.
        where: Name of the data in messages.
        start: The checkpoint that the run resumes from.
        before: The types of the data that this job has trained on so far.

    Raises:
        InputError: A column has another type than the data that the run was trained on.
    """
    now = RecordedTypes.of_files(config.data, files.files, where)
    if before is None and start:
        before = RecordedTypes.of_checkpoint(start.url, start.train_state)
    if before is None:
        return now
    before.check(config.data, files.files)
    return before.completed(now)


def plan_lanes(config: Config, files: FileSet, start: Checkpoint | None, context: DistributedContext) -> Lanes:
    """Returns the lanes of a run; a resumed run keeps the lanes of its checkpoint.

    Raises:
        NoRows: The data has fewer rows than a batch, and incomplete batches are dropped; on every rank.
        InputError: Lanes, batches and ranks do not divide one another, or the checkpoint is of other data.
    """
    # The lanes decide the order of samples. A resumed run keeps them, so it may have another number of ranks.
    recorded = start.train_state["lanes"] if start else default_lanes(context.world_size)
    number = config.data.lanes or recorded
    check_lanes(number, context.world_size, config.data.global_batch_size)
    lanes = Lanes(files.rows, number, config.data.global_batch_size, config.data.last_batch == "keep")
    if lanes.steps == 0:
        way_out = "use a smaller batch or 'keep'" if start is None else "put the files back that the run began with"
        raise NoRows(
            f"data.global_batch_size is {lanes.global_batch_size}, more than the {plural(files.rows, 'sample')} to "
            f"train on, and data.last_batch is 'drop'; {way_out}"
        )
    check_micro_batches(config.train.micro_batches, lanes, context.world_size)
    check_units(config.named_tasks(), lanes, context.world_size, config.train.micro_batches)
    return lanes
