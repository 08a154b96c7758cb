"""Fills the tables of a new run with vectors from files, `model.tables.NAME.vectors`.

Rank 0 reads the files piece by piece and sends the pieces to all ranks, each of which keeps the rows of its shards.
"""

from collections.abc import Iterator
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature, takes
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, placed_shards
from trainer.core.errors import InputError
from trainer.core.secrets import place
from trainer.core.storage import named, open_storage
from trainer.data.listing import LeftOutPaths, list_files
from trainer.data.readers.base import Reader
from trainer.data.readers.parquet import ParquetReader
from trainer.models.embeddings import table_of_weight
from trainer.rules.base import RefusedId
from trainer.rules.hashing import as_integers, shifted
from trainer.rules.plain_types import plain_array, to_ids
from trainer.rules.registry import id_rule
from trainer.rules.vocabulary import open_vocabulary
from trainer.training.sharded_model import ShardedModel

PIECE_VALUES = 1 << 20  # values that are read and sent at once


class Vectors(NamedTuple):
    """Vectors of some rows of a table.

    Attributes:
        rows: The rows, `[N]` int64.
        values: Their vectors, `[N, D]` float32.
        left_out: Number of ids beside them that have no row of their own.
    """

    rows: np.ndarray
    values: np.ndarray
    left_out: int = 0


def fill_from_vectors(config: Config, model: ShardedModel, context: DistributedContext) -> set[str]:
    """Fills the tables of a fresh model whose configuration names vectors; returns these tables.

    Raises:
        InputError: The files cannot be read, or do not fit the table.
    """
    tables = {name: table.vectors for name, table in config.model.tables.items() if table.vectors}
    for table, url in tables.items():
        weights = [value for name, value in model.weights().items() if table_of_weight(name) == table]
        pieces = _pieces(config, table, url)
        rows = left_out = 0
        while found := broadcast_from_rank0(context, lambda pieces=pieces: next(pieces, None)):
            for weight in weights:  # a single one, if this rank holds a part of the table
                _keep(weight, found)
            rows, left_out = rows + len(found.rows), left_out + found.left_out
        if context.is_rank0:
            more = f"; {left_out:,} ids have no row of their own and are left out" if left_out else ""
            print(f"table '{table}': {rows:,} rows begin with vectors of {place(url)}{more}", flush=True)
    return {*tables}


@torch.no_grad()
def _keep(weight: Tensor, vectors: Vectors) -> None:
    rows, values = torch.from_numpy(vectors.rows), torch.from_numpy(vectors.values)
    for shard, (row, column) in placed_shards(weight):
        here = (rows >= row) & (rows < row + len(shard))
        part = values[here, column : column + shard.shape[1]]
        shard[(rows[here] - row).to(shard.device)] = part.to(shard.device, shard.dtype)


def _pieces(config: Config, table: str, url: str) -> Iterator[Vectors]:
    """Yields the vectors of a table, after checks of their rows and values."""
    name = config.data.features_of_tables()[table][0]
    feature, key = config.data.sparse[name], f"model.tables.{table}.vectors"
    columns = feature.dimension or config.model.embedding_dim
    largest = torch.finfo(torch.float16 if config.model.precision_of(table) == "fp16" else torch.float32).max
    filled = np.zeros(feature.rows, bool)
    read = (
        _of_array(key, url, feature.rows, columns) if url.endswith(".npy") else _of_parquet(key, url, name, config.data)
    )
    for found in read:
        if found.values.shape[1:] != (columns,):
            raise InputError(
                f"{key} is {place(url)}, whose vectors have {found.values.shape[1]} numbers, but the table has "
                f"{columns} columns; make them equal"
            )
        for start in range(0, len(found.rows), step := max(1, PIECE_VALUES // columns)):
            rows, values = found.rows[start : start + step], found.values[start : start + step]
            # Not all at once: a NaN in the sum of a row is one in the row, but a sum may overflow.
            if not (good := (np.abs(values) <= largest).all(1)).all():
                raise InputError(
                    f"{key} is {place(url)}, where the vector of row {rows[good.argmin()]} of the table is not finite"
                    f"{' in fp16' if largest < 1e5 else ''}; correct it, or leave it out"
                )
            if filled[rows].any() or len(np.unique(rows)) < len(rows):
                numbers, counts = np.unique(rows, return_counts=True)
                twice = numbers[(counts > 1) | filled[numbers]][0]
                raise InputError(
                    f"{key} is {place(url)}, which has several vectors for row {twice} of the table; leave one"
                )
            filled[rows] = True
            yield Vectors(rows, values, found.left_out if not start else 0)


def _of_array(key: str, url: str, rows: int, columns: int) -> Iterator[Vectors]:
    """Yields the rows of a .npy file, in order."""
    with named(key, url):
        fs, path = open_storage(url)
        with fs.open(path, "rb") as file:
            try:
                version = np.lib.format.read_magic(file)
                header = (
                    np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                )
                shape, by_columns, dtype = header(file)
            except ValueError as error:
                raise InputError(
                    f"{key} is {place(url)}, which is no .npy file: {error}; write one by numpy.save"
                ) from error
            if shape != (rows, columns) or by_columns or dtype.kind != "f":
                order = " in Fortran's order" if by_columns else ""
                raise InputError(
                    f"{key} is {place(url)}, an array of {dtype} of the shape {[*shape]}{order}; the table needs "
                    f"floats of the shape [{rows}, {columns}], row by row"
                )
            at_once = max(1, PIECE_VALUES // columns)
            for first in range(0, rows, at_once):
                count = min(at_once, rows - first)
                content = file.read(count * columns * dtype.itemsize)
                if len(content) < count * columns * dtype.itemsize:
                    raise InputError(f"{key} is {place(url)}, which ends before row {first + count}; is it whole?")
                values = np.frombuffer(content, dtype).reshape(count, columns)
                yield Vectors(np.arange(first, first + count), values.astype(np.float32))


def _of_parquet(key: str, url: str, name: str, data: DataConfig) -> Iterator[Vectors]:
    """Yields the vectors of a Parquet file, or of those below a directory, by row group."""
    reader, feature, left_out = ParquetReader(), data.sparse[name], LeftOutPaths()
    files = list_files(key, url, cast(Reader, reader), left_out)["url"].to_pylist()
    left_out.report(key)
    for file in files:
        where = f"{key}: {place(file)}"
        try:
            contents = reader.inspect(file)
            by = _column_of_rows(where, contents.schema.names, name, feature)
            for group in range(len(contents.row_groups)):
                with reader.open(file, group, [by, "vector"]) as column:
                    ids, vectors = plain_array(column(by)), column("vector").combine_chunks()
                    rows, known = _rows(where, to_ids(ids), by, name, feature)
                    yield Vectors(rows, _values(where, vectors)[known], int((~known).sum()))
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{where} cannot be read: {' '.join(str(error).split())}; is it whole?") from error


def _column_of_rows(where: str, there: list[str], name: str, feature: SparseFeature) -> str:
    """Returns the column that decides on the rows of the table: `row`, or the ids of a feature."""
    if "vector" not in there or not {"id", "row"} & {*there}:
        raise InputError(f"{where} has the columns {', '.join(there)}; it needs vector, and id or row")
    if "row" in there:
        return "row"
    if takes(feature) != "ids" or feature.columns or feature.ids == "hash":
        raise InputError(
            f"{where} has vectors by id, but the ids of data.sparse.{name} are made or hashed, so that several may "
            "have the same row; give them by row"
        )
    return "id"


def _rows(where: str, ids: pa.Array, by: str, name: str, feature: SparseFeature) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows of those ids that have a row of their own, and which ids these are, `[N]` each."""
    if ids.null_count:
        raise InputError(f"{where} has a null in column {by}; leave it out")
    numbers = as_integers(ids if by == "row" else shifted(ids, feature.offset))
    known = np.ones(len(numbers), bool)
    if by == "id" and feature.ids == "vocabulary":
        known = np.isin(numbers, open_vocabulary(name, feature).keys)
    try:
        if by == "row" and (outside := (numbers < 0) | (numbers >= feature.rows)).any():
            raise RefusedId(int(outside.argmax()), f"is outside [0, {feature.rows}); leave it out")
        rows = numbers if by == "row" else id_rule(name, feature).rows_of(numbers[known])
    except RefusedId as refused:
        raise InputError(f"{where}, column {by}: {numbers[refused.place]} {refused}") from refused
    return rows.astype(np.int64), known


def _values(where: str, vectors: pa.Array) -> np.ndarray:
    """Returns lists of equal length as an array, `[N, D]` float32."""
    kind = vectors.type
    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not lists or not pa.types.is_floating(kind.value_type):
        raise InputError(f"{where}: column vector is of type {kind}; it must be lists of floats")
    values = vectors.flatten()
    lengths = (
        {len(values) // len(vectors)} if pa.types.is_fixed_size_list(kind) else {*vectors.value_lengths().to_pylist()}
    )
    if vectors.null_count or values.null_count or len(lengths) > 1:
        raise InputError(f"{where}: column vector has nulls, or vectors of several lengths; make them equal")
    return values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(vectors), -1)
