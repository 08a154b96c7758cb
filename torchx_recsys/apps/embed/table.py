"""Writes the rows of an embedding table, each with its id."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor

from torchx_recsys.apps.predict.inference import to_arrow
from torchx_recsys.apps.predict.parts import PartFiles
from torchx_recsys.apps.predict.resume import (
    ON_STOP,
    PartsJob,
    Record,
    choose_checkpoint,
    claimed,
    in_words,
    record_of_checkpoint,
)
from torchx_recsys.apps.runs.saved_tensors import read_tensors
from trainer.checkpoint.store import Checkpoint, FindDamage
from trainer.checkpoint.verify import verify_together
from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature, takes
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, placed_shards
from trainer.core.errors import InputError, nearest
from trainer.core.run_directory import RunDirectory
from trainer.models.embeddings import name_in_model, table_of_weight
from trainer.rules.managed import own_rows
from trainer.rules.vocabulary import listed_ids, open_vocabulary
from trainer.run.preemption import Stopped, stop_on_signals
from trainer.training.evaluate import restore_evaluated


def embed_table(
    config: Config, out: str, to: str, table: str, checkpoint: str, rows_per_part: int, context: DistributedContext
) -> None:
    """Writes the rows of a table as evaluations see them.

    Raises:
        InputError: There is no such table or checkpoint, or the directory holds parts of another job.
    """
    with stop_on_signals(context, ON_STOP) as stop_requests:
        directory, chosen = verify_together(
            context, lambda find: _find(config.data, out, to, table, checkpoint, rows_per_part, find)
        )
        model = restore_evaluated(config, chosen, context)
        ids = ids_of_table(config.data, table, chosen)
        about = {
            "table": table,
            "rows_per_part": rows_per_part,
            "averages": bool(model.averages and model.averages.evaluated),
        }
        job = broadcast_from_rank0(context, lambda: _job(directory, chosen, about, len(ids.rows)))
        with claimed(job, stop_requests, context) as claim, model.averaged():
            weights = [value for name, value in model.weights().items() if table_of_weight(name) == table]
            for number in claim.missing:
                if claim.give_up():
                    raise Stopped
                rows = ids.rows[slice(*claim.parts.parts[number])]
                vectors = _gathered(weights, rows, _dimension(config, table), context)
                broadcast_from_rank0(context, lambda n=number, v=vectors: _write(claim.parts, n, ids, v))


@dataclass(frozen=True)
class TableIds:
    """The `N` ids with a row of their own in a table.

    Attributes:
        name: `id`, or `row` if rows are not ids of the data: ids that are hashed, shifted or made of numbers.
        ids: The ids, `[N]` integers or strings.
        rows: The row of each id, `[N]` int64.
    """

    name: str
    ids: pa.Array
    rows: np.ndarray


def ids_of_table(config: DataConfig, table: str, checkpoint: Checkpoint) -> TableIds:
    """Returns the ids of a table, in the order of their rows.

    Args:
        config: The data.
        table: The table.
        checkpoint: The checkpoint, which has the rows of managed ids.

    Raises:
        InputError: The table's vocabulary cannot be read.
    """
    names = config.features_of_tables()[table]
    feature = config.sparse[names[0]]
    if feature.ids == "vocabulary":
        ids = listed_ids(names[0], feature)
        return TableIds("id", ids, open_vocabulary(names[0], feature).unseen_rows + np.arange(len(ids)))
    if feature.ids == "managed":
        name = f"managed.{name_in_model(table)}.ids"  # the checkpoint has the ids of all ranks, the model those of one
        known = read_tensors(checkpoint.url, name.__eq__)[name].numpy()
        rows = own_rows(known)
        return TableIds("id", pa.array(known[rows]), rows)
    rows = np.arange(feature.rows)
    return TableIds("id" if all(_are_rows(config.sparse[name]) for name in names) else "row", pa.array(rows), rows)


def _are_rows(feature: SparseFeature) -> bool:
    return feature.ids in ("error", "modulo") and takes(feature) == "ids" and not feature.offset


def _find(
    data: DataConfig, out: str, to: str, table: str, checkpoint: str, rows_per_part: int, find: FindDamage
) -> tuple[RunDirectory, Checkpoint]:
    """Finds the directory and the checkpoint, without writing anything."""
    if table not in (known := data.features_of_tables()):
        raise InputError(f"--table is '{table}', which the model does not have{nearest(table, known)}")
    if rows_per_part < 1:
        raise InputError(f"--rows-per-part is {rows_per_part}; it must be at least 1")
    directory = RunDirectory(to, "--to")
    return directory, choose_checkpoint(directory, out, checkpoint, find)


def _job(directory: RunDirectory, checkpoint: Checkpoint, about: Record, rows: int) -> PartsJob:
    if not rows:
        raise InputError(f"--table is '{about['table']}', in which no id has a row yet; train first")
    record = {"checkpoint": record_of_checkpoint(checkpoint), **about}
    return PartsJob(directory=directory, origin=in_words(checkpoint), record=record, rows=rows)


def _dimension(config: Config, table: str) -> int:
    feature = config.data.sparse[config.data.features_of_tables()[table][0]]
    return feature.dimension or config.model.embedding_dim


def _gathered(weights: list[Tensor], rows: np.ndarray, dimension: int, context: DistributedContext) -> Tensor:
    """Returns rows of a table, `[R, D]` float32, on the CPU of every rank.

    Args:
        weights: The table, if this rank holds a part of it.
        rows: The rows.
        dimension: Columns of the table.
        context: This process among the ranks.
    """
    wanted = torch.from_numpy(rows).to(context.device)
    found = torch.zeros(len(rows), dimension, device=context.device)
    for weight in weights:
        if context.is_rank0 or isinstance(weight, ShardedTensor):  # every rank holds a replicated table whole
            for shard, (row, column) in placed_shards(weight):
                here = (wanted >= row) & (wanted < row + len(shard))
                found[here, column : column + shard.shape[1]] = shard[wanted[here] - row].float()
    dist.all_reduce(found)
    return found.cpu()


def _write(parts: PartFiles, number: int, ids: TableIds, vectors: Tensor) -> None:
    start, stop = parts.parts[number]
    parts.open(number).add(
        pa.table({ids.name: ids.ids.slice(start, stop - start), "vector": to_arrow("vector", vectors)})
    )
