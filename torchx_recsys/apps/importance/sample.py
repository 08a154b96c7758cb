"""A sample of a split in memory, and the same sample with some columns permuted between its rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.importance.units import Unit
from trainer.batches.batch import features_only
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.rows import Rows
from trainer.config.data import DataConfig
from trainer.config.features import columns_of
from trainer.data.dataset import FileSet
from trainer.data.row_groups import RowGroupReader

MOST_ROW_GROUPS = 64  # row groups that are read for a sample, so that a large split takes no longer than a small one


@dataclass(frozen=True)
class Sample:
    """Rows of a split.

    Attributes:
        rows: The rows, `R` of them.
        crossed: The columns that crosses are made of, `[R]` each.
        data: The columns and their rules.
        row_groups: How many row groups the rows are from.
    """

    rows: Rows
    crossed: pa.Table
    data: DataConfig
    row_groups: int

    def permuted(self, unit: Unit, order: np.ndarray) -> Rows:
        """Returns the rows with the unit's values from other rows; labels, weights and groups stay.

        Args:
            unit: The columns that move.
            order: For each row, the row that its values come from, `[R]`.
        """
        rows = moved(self.rows, order, self.data, unit.dense, unit.sparse)
        if not unit.crosses:
            return rows
        columns = {
            name: column.take(pa.array(order)) if name in unit.columns else column
            for name, column in zip(self.crossed.column_names, self.crossed.columns, strict=True)
        }
        crosses = features_only(self.data, unit.crosses)
        again = decode(Chunk(columns.__getitem__, range(len(rows))), crosses, ())
        ids, places = rows.ids.copy(), _places(self.data, rows)
        for name, values in zip(crosses.sparse, again.ids, strict=True):
            ids[places[name]] = values
        return replace(rows, ids=ids)


def moved(rows: Rows, order: np.ndarray, data: DataConfig, dense: frozenset[str], sparse: frozenset[str]) -> Rows:
    """Returns rows with the values of some features from other rows; whole lists move."""
    numbers, ids, places = rows.numbers.copy(), rows.ids.copy(), _places(data, rows)
    for name in dense:
        for place in data.dense_columns[name]:
            numbers[place] = rows.numbers[place][order]
    for name in sparse & places.keys():
        ids[places[name]] = rows.ids[places[name]][order]
    bags = {name: bag.take(pa.array(order)) if name in sparse else bag for name, bag in rows.bags.items()}
    return replace(rows, numbers=numbers, ids=ids, bags=bags)


def _places(data: DataConfig, rows: Rows) -> dict[str, int]:
    """Returns the place in `rows.ids` of each feature with single ids."""
    return {name: place for place, name in enumerate(name for name in data.sparse if name not in rows.bags)}


def read_sample(files: FileSet, data: DataConfig, most: int, seed: int) -> Sample:
    """Reads at most so many rows, drawn without replacement from row groups spread over the split.

    Raises:
        InputError: A file is gone or damaged, or a value is not allowed.
    """
    groups = files.row_groups
    if files.rows > most and len(groups) > MOST_ROW_GROUPS:
        groups = [groups[place] for place in np.linspace(0, len(groups) - 1, MOST_ROW_GROUPS).astype(int)]
    sizes = [group.rows for group in groups]
    total = sum(sizes)
    chosen = np.sort(np.random.default_rng(seed).choice(total, min(most, total), replace=False))
    ends = np.cumsum(sizes)
    parts = np.split(chosen, np.searchsorted(chosen, ends[:-1]))
    names = _crossed_columns(data)
    reader, lists = RowGroupReader(files, data), files.files[0].lists
    rows, columns = list[Rows](), list[pa.Table]()
    for group, first, part in zip(groups, ends - sizes, parts, strict=True):
        if len(part):
            chunk = Chunk(reader.read(group), range(group.rows), partial(reader.where, group))
            rows.append(decode(chunk, data, lists).take(part - first))
            columns.append(_taken(chunk, names, part - first))
    crossed = pa.concat_tables(columns, promote_options="permissive")
    return Sample(Rows.join(rows), crossed, data, len(rows))


def _crossed_columns(data: DataConfig) -> list[str]:
    crosses = [(name, feature) for name, feature in data.sparse.items() if feature.columns]
    return [*dict.fromkeys(column for name, feature in crosses for column in columns_of(name, feature))]


def _taken(chunk: Chunk, names: Sequence[str], places: np.ndarray) -> pa.Table:
    return pa.table({name: chunk.ids(name).take(pa.array(places)) for name in names})
