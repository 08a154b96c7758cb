"""What every benchmark trains: a DLRM on data of Criteo's shape, in a run directory that goes with it."""

import contextlib
import itertools
from collections.abc import Iterator

from trainer.config.data import DataConfig, DenseFeature, SparseFeature
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0
from trainer.core.run_directory import RunDirectory
from trainer.data.batch import Batch
from trainer.data.loader import Loader
from trainer.datasets.synthetic import DENSE_FEATURES, SPARSE_FEATURES, synthetic
from trainer.training.session import Session

TABLE_ROWS = 100_000
MODEL = {"embedding_dim": 32, "dense_layers": [256, 128], "over_layers": [256, 128]}
MEMORY_BATCHES = 8
SCRATCH = "bench-run"


def make_data(out: str, rows: int) -> None:
    """Makes the data if it is not there.

    Raises:
        InputError: There is data of other settings.
    """
    synthetic(f"{out}/data", rows, validation_rows=0, test_rows=0, table_rows=(TABLE_ROWS,))


def make_config(out: str, global_batch_size: int) -> Config:
    """Returns the configuration of a job that trains on that data."""
    data = DataConfig(
        train=[f"{out}/data/train"],
        dense={f"int_{i}": DenseFeature() for i in range(DENSE_FEATURES)},
        sparse={f"cat_{i}": SparseFeature(rows=TABLE_ROWS) for i in range(SPARSE_FEATURES)},
        global_batch_size=global_batch_size,
    )
    return Config.model_validate({"data": data, "model": MODEL, "train": {"epochs": 1}})


@contextlib.contextmanager
def scratch_run(out: RunDirectory, context: DistributedContext) -> Iterator[RunDirectory]:
    """Gives a run directory below another directory, empty at first and gone in the end."""
    scratch = RunDirectory(out.url_of(SCRATCH))

    def remove() -> None:
        if scratch.fs.exists(scratch.path()):
            scratch.fs.rm(scratch.path(), recursive=True)

    broadcast_from_rank0(context, remove)
    yield scratch
    broadcast_from_rank0(context, remove)


def loader_of(session: Session) -> Loader:
    """Returns a loader of a session's data, from the first batch on."""
    config, context = session.config, session.context
    return Loader(
        session.order.files, config.data, session.order.lanes, context.rank, context.world_size, seed=0, shuffle=True
    )


def batches_in_memory(session: Session) -> Iterator[Batch]:
    """Yields the first few batches of a session's data, again and again."""
    return itertools.cycle(list(loader_of(session).batches(0, MEMORY_BATCHES)))
