"""The trainer's own answers as a reference: rows from its loader, looked up by TorchRec in one unsharded process."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from torchx_recsys.apps.export.features import Features, IdLists
from trainer.batches.batch import Batch, to_batch, with_values
from trainer.batches.chunk import Chunk, chosen, earlier, seconds_of
from trainer.batches.decode import decode
from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature, columns_of, ids_beside, takes, takes_any
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext
from trainer.data.dataset import FileSet
from trainer.data.row_groups import RowGroupReader
from trainer.models.base import Predictions
from trainer.models.embeddings import table_of_weight
from trainer.models.outputs import ModelOutput, compute_outputs
from trainer.rules.lookups import lists_of_map
from trainer.rules.plain_types import as_lists, id_type, is_string, list_lengths, to_numbers, to_texts
from trainer.training.id_map import IdMap, make_id_map

ALONE = DistributedContext(0, 1, 0, 1, torch.device("cpu"))
READ_ROWS = 4096
PARITY_ROWS = 64


def saved_id_map(config: Config, train_state: Mapping[str, Any], state: dict[str, Tensor]) -> IdMap:
    """Returns the rows of ids of a checkpoint; `state` has the names of the checkpoint."""
    id_map = make_id_map(config, ALONE)
    for name, value in id_map.restoring(train_state).items():
        value.copy_(state[name])
    return id_map


@dataclass(frozen=True)
class SplitRows:
    """Consecutive rows of a split.

    Attributes:
        columns: The features' raw values, by column.
        batch: The same rows, read by the loader.
    """

    columns: dict[str, list[Any]]
    batch: Batch


def read_rows(files: FileSet, data: DataConfig, id_map: IdMap, at_once: int = READ_ROWS) -> Iterator[SplitRows]:
    """Yields the rows of a split in order, `at_once` at a time."""
    reader = RowGroupReader(files, data)
    for group in files.row_groups:
        with reader.open(group) as column:
            for start in range(0, group.rows, at_once):
                rows = range(start, min(start + at_once, group.rows))
                chunk = Chunk(column, rows, partial(reader.where, group))
                batch = id_map.looked_up(to_batch(decode(chunk, data, files.files[0].lists), data, 1.0))
                yield SplitRows(raw_columns(chunk, data), batch)


def raw_columns(chunk: Chunk, data: DataConfig) -> dict[str, list[Any]]:
    """Returns the values of the features' columns, as a client sends them."""
    uses: dict[str, set[str]] = {}
    for name, feature in (*data.dense.items(), *data.sparse.items()):
        for column in columns_of(name, feature):
            uses.setdefault(column, set()).add("nulls" if takes_any(feature) else takes(feature))
        for column in ids_beside(feature).values():
            uses.setdefault(column, set()).add("ids")
    for feature in data.sparse.values():
        for column in feature.weight_columns:
            uses.setdefault(column, set()).add("numbers")
    timed = {
        column: one
        for name, one in data.sparse.items()
        for column in (one.column or name, *one.weight_columns)
        if one.times
    }
    return {column: raw_column(column, chunk, found, timed.get(column)) for column, found in uses.items()}


def raw_column(column: str, chunk: Chunk, uses: set[str], timed: SparseFeature | None = None) -> list[Any]:
    """Returns the values of a column, as a client sends them.

    Args:
        column: The column.
        chunk: The rows.
        uses: What features take it for: numbers, ids, times or nulls.
        timed: A feature that leaves out later ids.
    """
    if "times" in uses:
        seconds, missing = seconds_of(column, chunk)
        return pa.array(seconds, mask=missing).to_pylist()
    if uses == {"nulls"}:  # a column of any type; only presence matters
        return [None if missing else 0 for missing in chunk.array(column).is_null(nan_is_null=True).to_pylist()]
    if isinstance(chunk.array(column), pa.MapArray):
        return _raw_maps(column, chunk, uses)
    array = chunk.ids(column) if "ids" in uses else chunk.numbers(column)
    if timed:  # a client does not have later ids
        array = as_lists(array)
        array = chosen(array, earlier(column, timed, chunk, list_lengths(array)))
    return _raw(array)


def _raw(array: pa.Array) -> list[Any]:
    return to_texts(array) if is_string(id_type(array.type)) else array.to_pylist()


def _raw_maps(column: str, chunk: Chunk, uses: set[str]) -> list[Any]:
    """Returns maps as lists of pairs, which keep a key that occurs twice, and keys that are no text in JSON."""
    keys, values = lists_of_map(chunk.array(column))
    values = chunk.to_ids(column, values) if "ids" in uses else to_numbers(values)
    pairs = zip(_raw(chunk.to_ids(column, keys)), _raw(values), strict=True)
    return [None if one is None else [list(pair) for pair in zip(one, other, strict=True)] for one, other in pairs]


def first_rows(rows: Callable[..., Iterator[SplitRows]]) -> list[SplitRows]:
    """Returns the first rows of a split, at least `PARITY_ROWS` if the split has them; `rows` returns `read_rows`."""
    found: list[SplitRows] = []
    for part in rows(at_once=PARITY_ROWS):
        found.append(part)
        if sum(len(one.batch.weights) for one in found) >= PARITY_ROWS:
            break
    return found


Answers = Callable[[nn.Module, Batch], Tensor | Predictions]
"""Returns a model's predictions for a batch."""


def torchrec_answers(model: nn.Module, batch: Batch) -> Tensor | Predictions:
    """Returns the predictions of a model with TorchRec's tables."""
    return model(batch.dense, batch.sparse)


def trained_parity(
    model: nn.Module, rows: dict[str, Tensor], outputs: list[ModelOutput], samples: list[SplitRows], data: DataConfig
) -> dict[str, dict[str, list[Any]]]:
    """Returns the `parity` of samples with the trainer's answers, and leaves the model with only these rows.

    Args:
        model: The model, with TorchRec's tables.
        rows: The `rows_of_samples` themselves, `[R, D]`, by table.
        outputs: The outputs.
        samples: The samples.
        data: Names the tables.
    """
    # In float32, as FBGEMM's kernels sum rows of any precision; TorchRec's own modules would round each sum.
    _put_rows(model, {table: one.float() for table, one in rows.items()})
    numbers = rows_of_samples(samples, data)
    renumbered = [SplitRows(part.columns, _renumbered(part.batch, numbers, data)) for part in samples]
    return parity(model, torchrec_answers, outputs, renumbered)


def rows_of_samples(samples: list[SplitRows], data: DataConfig) -> dict[str, Tensor]:
    """Returns the rows of each table that samples need, at least one, in ascending order."""
    found = {}
    for table, names in data.features_of_tables().items():
        ids = [part.batch.sparse[name].values().long() for part in samples for name in names]
        found[table] = torch.cat([torch.zeros(1, dtype=torch.int64), *ids]).unique()
    return found


def _renumbered(batch: Batch, rows: dict[str, Tensor], data: DataConfig) -> Batch:
    """Returns a batch with renumbered ids, for tables with only these rows."""
    ids = {name: one.values().long() for name, one in batch.sparse.to_dict().items()}
    values = [
        one if name in data.raw else torch.searchsorted(rows[data.table_of(name)], one) for name, one in ids.items()
    ]
    return replace(batch, sparse=with_values(batch.sparse, torch.cat(values))) if values else batch


def _put_rows(model: nn.Module, rows: dict[str, Tensor]) -> None:
    """Cuts TorchRec's tables in a model to a few rows each."""
    for path, _ in [*model.named_parameters(remove_duplicate=False)]:
        if table := table_of_weight(path):
            module = model.get_submodule(path.rpartition(".")[0])
            module.weight = nn.Parameter(rows[table], requires_grad=False)


def plain_answers(model: nn.Module, batch: Batch) -> Tensor | Predictions:
    """Returns the predictions of a model with plain tables."""
    features = batch.sparse.to_dict()
    ids = {
        name: IdLists(one.values().long(), one.lengths().long(), weights=one.weights_or_none())
        for name, one in features.items()
    }
    return model(batch.dense, Features(ids, len(batch.dense)))


@torch.inference_mode()
def parity(
    model: nn.Module, answers: Answers, outputs: list[ModelOutput], samples: list[SplitRows]
) -> dict[str, dict[str, list[Any]]]:
    """Returns the raw `columns` of the first `PARITY_ROWS` rows, and the model's `answers`.

    Args:
        model: The model.
        answers: Calls the model.
        outputs: The outputs.
        samples: The `first_rows` of a split.
    """
    found: dict[str, dict[str, list[Any]]] = {"columns": {}, "answers": {}}
    for part in samples:
        computed = compute_outputs(outputs, answers(model, part.batch))
        more = {"columns": part.columns, "answers": {name: one.tolist() for name, one in computed.items()}}
        for kind, columns in more.items():
            for name, values in columns.items():
                found[kind].setdefault(name, []).extend(values)
    return {kind: {name: one[:PARITY_ROWS] for name, one in columns.items()} for kind, columns in found.items()}
