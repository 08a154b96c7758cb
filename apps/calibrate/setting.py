"""The data set, the model and the run directory that all benchmarks share."""

import contextlib
from collections.abc import Iterator

from apps.datasets.synthetic import DENSE_FEATURES, SPARSE_FEATURES, synthetic
from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature, SparseFeature
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all
from trainer.core.run_directory import RunDirectory
from trainer.data.batch import Batch
from trainer.training.session import Session

TABLE_ROWS = 100_000
MODEL = {"embedding_dim": 32, "dense_layers": [256, 128], "over_layers": [256, 128]}
MEMORY_BATCHES = 8
WARM_STEPS = 5
SCRATCH = "bench-run"


def make_data(out: str, rows: int) -> None:
    """Makes the data set, in Criteo's shape, if it is not there.

    Raises:
        InputError: There is data of other settings.
    """
    synthetic(f"{out}/data", rows, validation_rows=0, test_rows=0, table_rows=(TABLE_ROWS,))


def make_config(out: str, global_batch_size: int) -> Config:
    """Returns the configuration of a DLRM that is trained on that data."""
    data = DataConfig(
        train=[f"{out}/data/train"],
        dense={f"int_{i}": DenseFeature() for i in range(DENSE_FEATURES)},
        sparse={f"cat_{i}": SparseFeature(rows=TABLE_ROWS) for i in range(SPARSE_FEATURES)},
        global_batch_size=global_batch_size,
    )
    return Config.model_validate({"data": data, "model": MODEL, "train": {"epochs": 1}})


@contextlib.contextmanager
def scratch_run(out: RunDirectory, context: DistributedContext) -> Iterator[RunDirectory]:
    """Yields a run directory below another directory: empty at first, and deleted at the end."""
    scratch = RunDirectory(out.url_of(SCRATCH))

    def remove() -> None:
        if scratch.fs.exists(scratch.path()):
            scratch.fs.rm(scratch.path(), recursive=True)

    broadcast_from_rank0(context, remove)
    yield scratch
    gather_to_all(None, context)  # every rank has done with it
    broadcast_from_rank0(context, remove)


def batches_in_memory(session: Session) -> list[Batch]:
    """Returns the first few batches of a session's data."""
    return list(session.order.loader.batches(0, MEMORY_BATCHES))
