"""Batch inference: every rank computes and writes its own parts, all ranks in the same number of steps."""

import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import islice

import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from tqdm import tqdm

from torchx_recsys.apps.predict.kept_columns import KeptColumns
from torchx_recsys.apps.predict.parts import PartFile, PartFiles, PartLanes, lanes_of
from trainer.batches.batch import Batch
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.core.console import plural
from trainer.core.distributed import DistributedContext
from trainer.core.errors import InputError
from trainer.data.dataset import FileSet
from trainer.models.outputs import ModelOutput, outputs_by_name
from trainer.rules.id_lists import pooling_weights
from trainer.run.preemption import Stopped
from trainer.training.sharded_model import ShardedModel

INTERVAL_SECONDS = 10.0
Columns = dict[str, Tensor]


class Predictor:
    """A model that computes outputs for batches.

    Args:
        model: The model, inside `averaged()`.
        outputs: The outputs to compute.
        here: The features in the data.
        every: All features.
        device: The device of this rank.
    """

    def __init__(
        self, model: ShardedModel, outputs: list[ModelOutput], here: DataConfig, every: DataConfig, device: torch.device
    ) -> None:
        self._model, self._outputs, self._here, self._every, self._device = model, outputs, here, every, device
        model.model.eval()

    @torch.no_grad()
    def compute(self, batches: Iterator[Batch]) -> Iterator[Columns]:
        """Yields the outputs of each batch, on the CPU."""
        for batch in batches:
            rows = self._model.id_map.looked_up(with_all_features(batch, self._here, self._every))
            _, found = self._model.model(rows.to(self._device))
            yield {name: value.cpu() for name, value in outputs_by_name(self._outputs, found.predictions).items()}


def predict_parts(
    predictor: Predictor,
    files: FileSet,
    data: DataConfig,
    numbers: list[int],
    batch_size: int,
    kept: pa.Schema,
    parts: PartFiles,
    context: DistributedContext,
    give_up: Callable[[], bool] = lambda: False,
) -> str:
    """Makes parts, row group by row group, while a thread reads the columns to keep and writes the parts.

    Args:
        predictor: The model.
        files: The files to predict.
        data: The columns to read.
        numbers: Numbers of the parts to make.
        batch_size: Rows of a rank in a batch.
        kept: The columns to keep.
        parts: The parts and their files.
        context: This process among the ranks.
        give_up: Called before every batch; returns whether to give up, the same on all ranks.

    Returns:
        Rows and rate.

    Raises:
        Stopped: `give_up` returned True; whole parts are written.
    """
    lanes = lanes_of([parts.parts[number] for number in numbers], context.world_size, batch_size)
    loader = Loader(files, data, lanes, context.rank, context.world_size, seed=0, shuffle=False)
    progress = PredictProgress(lanes.rows, context)
    batches = _until(give_up, loader.batches(0, lanes.steps))
    columns = _counted(predictor.compute(batches), lanes, progress)
    with ThreadPoolExecutor(1, "write") as pool:
        written: Future[None] | None = None
        reader = KeptColumns(files, data, kept)
        for number in numbers[context.rank :: context.world_size]:
            part = parts.open(number)
            for start, stop in parts.row_groups(number, batch_size):
                read = pool.submit(reader.read, start, stop)
                found = [*islice(columns, -(-(stop - start) // batch_size))]
                if written:
                    written.result()
                written = pool.submit(_add, part, stop - start, read, found)
        for _ in columns:  # while other ranks make one more part, this rank takes part in their steps
            pass
        if written:
            written.result()
    return progress.summary()


class PredictProgress:
    """Prints the progress of the job on rank 0; all ranks take the same number of steps.

    Args:
        rows: Rows to predict, on all ranks.
        context: This process among the ranks.
        of: What is counted in place of rows.
    """

    def __init__(self, rows: int, context: DistributedContext, of: str = "row") -> None:
        self._rows, self._done, self._context, self._of = rows, 0, context, of
        self._started = self._printed = time.monotonic()

    def add(self, rows: int) -> None:
        """Counts predicted rows, on all ranks."""
        self._done += rows
        now = time.monotonic()
        if self._context.is_rank0 and now - self._printed >= INTERVAL_SECONDS:
            self._printed = now
            left = (now - self._started) / self._done * (self._rows - self._done)
            print(f"{self.summary()}  ETA {tqdm.format_interval(round(left))}", flush=True)

    def summary(self) -> str:
        """Returns the predicted rows, their share of all rows, and the rate so far."""
        rate = self._done / max(1e-9, time.monotonic() - self._started)
        done = f"{self._done:,} of {plural(self._rows, self._of)} ({self._done / self._rows:.0%})"
        return f"{done}  {rate:,.0f} {self._of}s/s"


def _until(give_up: Callable[[], bool], batches: Iterator[Batch]) -> Iterator[Batch]:
    for batch in batches:
        if give_up():
            raise Stopped
        yield batch


def _counted(columns: Iterator[Columns], lanes: PartLanes, progress: PredictProgress) -> Iterator[Columns]:
    for step, found in enumerate(columns):
        progress.add(lanes.samples_in_step(step))
        yield found


def _add(part: PartFile, rows: int, kept: Future[dict[str, pa.ChunkedArray]], found: list[Columns]) -> None:
    outputs = {name: to_arrow(name, torch.cat([columns[name] for columns in found])[:rows]) for name in found[0]}
    part.add(pa.table(kept.result() | outputs))


def to_arrow(name: str, values: Tensor) -> pa.Array:
    """Returns values as a column: numbers for `[B]`, for `[B, D]` and `[B, Q, D]` lists of fixed sizes."""
    if values.dim() > 3:
        raise InputError(f"the model gives {[*values.shape]} for '{name}'; a column takes [B], [B, D] or [B, Q, D]")
    column = pa.array(values.reshape(-1).numpy())
    for size in reversed(values.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def with_all_features(batch: Batch, here: DataConfig, config: DataConfig) -> Batch:
    """Adds the missing features to a batch, as in a batch of items. The added features are empty.

    Args:
        batch: The batch.
        here: Its features, in the order of the configuration.
        config: All features.
    """
    if (here.dense.keys(), here.sparse.keys()) == (config.dense.keys(), config.sparse.keys()):
        return batch
    samples = len(batch.dense)
    dense, columns = batch.dense.new_zeros(samples, config.dense_width), config.dense_columns
    dense[:, [place for name in here.dense for place in columns[name]]] = batch.dense
    lengths = batch.sparse.lengths().new_zeros(len(config.sparse), samples)
    lengths[_places(here.sparse, config.sparse)] = batch.sparse.lengths().view(-1, samples)
    weights = batch.sparse.weights_or_none()
    if weights is None and config.has_id_weights:
        weights = torch.from_numpy(pooling_weights(here.sparse, batch.sparse.lengths().numpy(), {}))
    # The values of an empty feature take no place, and other features keep their order.
    sparse = KeyedJaggedTensor(
        keys=[*config.sparse],
        values=batch.sparse.values(),
        weights=weights,
        lengths=lengths.flatten(),
        stride=samples,
    )
    return replace(batch, dense=dense, sparse=sparse)


def _places(names: Collection[str], everything: Collection[str]) -> torch.Tensor:
    places = {name: place for place, name in enumerate(everything)}
    return torch.tensor([places[name] for name in names], dtype=torch.int64)
