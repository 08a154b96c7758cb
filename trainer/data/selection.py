"""The rows of a row group that data.select chooses: a function of seed, epoch and row group."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import RowChoice, RowGroup
from trainer.data.filters import meets_all
from trainer.data.readers.base import Column
from trainer.data.shuffling import philox
from trainer.rules.plain_types import plain_array, plain_column, to_numbers

STREAM = 2  # of random numbers, two streams for each copy; 0 orders the samples, 1 draws from the catalogue


@dataclass(frozen=True)
class SelectedColumns:
    """The columns of the chosen rows of a row group.

    Attributes:
        column: Returns a column of the chosen rows.
        places: Places of the rows in the row group, `[R]`.
        factors: Factors of the rows' weights, `[R]` float32; None for 1.
    """

    column: Column
    places: np.ndarray
    factors: np.ndarray | None

    def __call__(self, name: str) -> pa.ChunkedArray:
        """Returns a column of the chosen rows."""
        return self.column(name)


def row_in_file(column: Column, row: int) -> int:
    """Returns the place in the row group of a row of `column`."""
    return int(column.places[row]) if isinstance(column, SelectedColumns) else row


def weight_factors(column: Column, rows: range) -> np.ndarray:
    """Returns the factors of the weights of rows, `[R]` float32; a scalar, 1, if all rows are chosen."""
    factors = column.factors if isinstance(column, SelectedColumns) else None
    return np.array(1, np.float32) if factors is None else factors[rows.start : rows.stop]


def selecting_columns(choice: RowChoice | None, config: DataConfig) -> list[str]:
    """Returns the columns that decide which rows of a row group are chosen."""
    names = [clause.column for clause in config.select.clauses] if choice and choice.matching is not None else []
    return [*names, config.labels[0]] if choice and choice.negatives else names


def is_negative(column: Column, config: DataConfig) -> np.ndarray:
    """Returns which rows have a first label of 0, `[R]` bool."""
    label = pc.cast(to_numbers(plain_array(column(config.labels[0]))), pa.float64(), safe=False)
    return label.fill_null(1.0).to_numpy(zero_copy_only=False) == 0


@dataclass(frozen=True)
class Draw:
    """Random choices in a row group: a function of seed, epoch and row group.

    Attributes:
        group: The row group.
        seed: The seed.
        epoch: The epoch.
    """

    group: RowGroup
    seed: int
    epoch: int

    def sample(self, places: np.ndarray, number: int, stream: int) -> np.ndarray:
        """Returns `number` of the places at random, in their order."""
        if number >= len(places):
            return places
        random = philox(self.seed, self.epoch, self.group.file, self.group.index, STREAM + stream)
        return places[np.sort(np.argpartition(random.random_raw(len(places)), number)[:number])]


def select(column: Column, rows: int, config: DataConfig, draw: Draw, where: str) -> SelectedColumns:
    """Chooses rows of a row group.

    Args:
        column: Returns a column of all rows.
        rows: Rows of the row group in the file.
        config: The filter and the label.
        draw: Decides the choice.
        where: Beginning of messages.

    Raises:
        InputError: Other rows meet the filter, or are negatives, than when the job began.
    """
    choice = draw.group.choice
    assert choice is not None
    # The deciding columns are often features, too, and would be read again.
    known = {name: column(name) for name in dict.fromkeys(selecting_columns(choice, config))}
    chosen, factors = np.ones(rows, bool), None
    if choice.matching is not None:
        chosen = meets_all(config.select.clauses, known.__getitem__, rows)
        _check_counted(chosen, choice.matching, "rows that meet data.select.filter", where)
    if choice.negatives:
        negative = is_negative(known.__getitem__, config) & chosen
        _check_counted(negative, choice.negatives, "rows that are negatives", where)
        chosen &= ~negative
        chosen[draw.sample(np.flatnonzero(negative), choice.kept, 2 * choice.copy)] = True
        factors = np.where(negative, np.float32(choice.negatives / choice.kept), np.float32(1))
    places = draw.sample(np.flatnonzero(chosen), draw.group.rows, 2 * choice.copy + 1)
    columns = _taken(lambda name: known[name] if name in known else column(name), places, rows)
    return SelectedColumns(columns, places, None if factors is None else factors[places])


def _check_counted(found: np.ndarray, counted: int, what: str, where: str) -> None:
    if found.sum() != counted:
        raise InputError(
            f"{where}: has {found.sum()} {what}, but had {counted} when the job began; do not change files that are "
            "trained on"
        )


def _taken(column: Column, places: np.ndarray, rows: int) -> Column:
    """Returns the columns of the rows at some places of a row group with `rows` rows."""
    if len(places) == rows:
        return column
    mask = np.zeros(rows, bool)
    mask[places] = True
    taken = pa.array(mask)
    return lambda name: plain_column(column(name)).filter(taken)
