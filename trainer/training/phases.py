"""The results of the first phases of setup: the run directory that a job holds, and the order of its samples."""

from dataclasses import dataclass

from trainer.checkpoint.store import Checkpoint
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext
from trainer.core.run_directory import RunDirectory
from trainer.data.catalogue import Catalogue
from trainer.data.dataset import FileSet
from trainer.data.loader import Loader
from trainer.data.order import Lanes


@dataclass(frozen=True, kw_only=True)
class ClaimedRun:
    """A run directory that this job alone writes to.

    Attributes:
        config: The configuration.
        context: This process among the ranks.
        directory: The run directory.
        start: The checkpoint to resume from; None for a start from scratch.
        verify_seconds: Time that finding and verifying it took.
    """

    config: Config
    context: DistributedContext
    directory: RunDirectory
    start: Checkpoint | None
    verify_seconds: float


@dataclass(frozen=True, kw_only=True)
class EpochOrder:
    """The order in which a run trains on its samples.

    Attributes:
        files: The training data.
        lanes: The samples of every step.
        loader: This rank's batches.
        catalogue: All items; None without data.catalogue.
        first_step: Steps done before.
        last_step: The step that training ends with.
    """

    files: FileSet
    lanes: Lanes
    loader: Loader
    catalogue: Catalogue | None
    first_step: int
    last_step: int
