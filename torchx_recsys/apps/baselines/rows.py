"""The rows of a split, decoded as training decodes them: all of them chunk by chunk, or a sample in memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from torchx_recsys.apps.check_data.splits import Split as ChosenFrom
from torchx_recsys.apps.check_data.splits import chosen_groups
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.rows import Rows
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import FileSet
from trainer.data.row_groups import RowGroupReader, find_evaluated_files, find_training_files, spread

CHUNK = 1 << 16  # rows that are decoded together
Tell = Callable[[int], object]
"""Is told how many rows were read."""


@dataclass(frozen=True)
class Table:
    """`R` decoded rows: numbers under their transforms, ids as rows of their tables.

    Attributes:
        rows: The rows.
        data: Their columns.
    """

    rows: Rows
    data: DataConfig

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dense(self) -> np.ndarray:
        """The columns of the dense features, `[D, R]` float32."""
        return self.rows.numbers[: self.data.dense_width]

    @property
    def labels(self) -> np.ndarray:
        """All labels, `[L, R]` float32."""
        return self.rows.numbers[self.data.dense_width : -1]

    @property
    def weights(self) -> np.ndarray:
        """The weight of each row, `[R]` float32."""
        return self.rows.numbers[-1]

    @property
    def single(self) -> list[str]:
        """The sparse features with at most one id per row."""
        return [name for name in self.data.sparse if name not in self.rows.bags]

    def label(self, name: str) -> np.ndarray:
        """Returns a label, `[R]` float32."""
        return self.labels[self.data.labels.index(name)]

    def ids(self, name: str) -> np.ndarray:
        """Returns the ids of a single feature, `[R]`; NO_ID without an id."""
        return self.rows.ids[self.single.index(name)]

    def bag(self, name: str) -> pa.LargeListArray:
        """Returns the ids of a feature with lists, `[R]` lists."""
        return self.rows.bags[name]

    def group(self, name: str) -> np.ndarray:
        """Returns a column of data.groups, `[R]` int64."""
        return self.rows.groups[self.data.groups.index(name)]

    def key(self, name: str) -> np.ndarray:
        """Returns a single feature or a group, `[R]`."""
        return self.group(name) if name in self.data.groups else self.ids(name)


class Split:
    """The rows of a split that data.select chooses.

    Args:
        name: train, validation or test.
        files: The files.
        data: The columns.
    """

    def __init__(self, name: str, files: FileSet, data: DataConfig) -> None:
        self.name, self.files = name, files
        self._data, self._reader = data, RowGroupReader(files, data)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.files.rows

    def chunks(self, tell: Tell) -> Iterator[Table]:
        """Yields all rows in the order of the files.

        Raises:
            InputError: A file cannot be read, or a value is not allowed.
        """
        for group in self.files.row_groups:
            column = self._reader.read(group)
            for start in range(0, group.rows, CHUNK):
                rows = range(start, min(start + CHUNK, group.rows))
                yield self._decoded(Chunk(column, rows, partial(self._reader.where, group)))
                tell(len(rows))

    def sample(self, most: int, seed: int, tell: Tell) -> Table:
        """Returns all rows in the order of the files, or a sample if there are more than `most`; the same errors."""
        if self.rows <= most:
            return Table(Rows.join([table.rows for table in self.chunks(tell)]), self._data)
        groups = chosen_groups(ChosenFrom(self.name, self.files, {}), most, False, seed)
        read = np.array([group.rows for group in groups])
        random, parts = np.random.default_rng(seed), []
        for group, kept in zip(groups, spread(read, np.full(len(read), most / read.sum())), strict=True):
            column = self._reader.read(group)
            places = np.sort(random.choice(group.rows, min(int(kept), group.rows), replace=False))
            ends = np.searchsorted(places, range(0, group.rows + CHUNK, CHUNK))
            for start, first, last in zip(range(0, group.rows, CHUNK), ends, ends[1:], strict=False):
                rows = range(start, min(start + CHUNK, group.rows))
                table = self._decoded(Chunk(column, rows, partial(self._reader.where, group)))
                parts.append(table.rows.take(places[first:last] - start))
                tell(len(rows))
        return Table(Rows.join(parts), self._data)

    def rows_to_read(self, most: int, seed: int) -> int:
        """Returns how many rows `sample` reads."""
        if self.rows <= most:
            return self.rows
        return sum(group.rows for group in chosen_groups(ChosenFrom(self.name, self.files, {}), most, False, seed))

    def _decoded(self, chunk: Chunk) -> Table:
        return Table(decode(chunk, self._data, self.files.files[0].lists), self._data)


def open_splits(config: Config) -> dict[str, Split]:
    """Lists the files of data.train, data.validation and data.test, and checks their columns.

    Raises:
        InputError: Files cannot be used, or have columns of other types than those of data.train.
    """
    data = config.data
    train = find_training_files(data, config.train.seed)
    types = RecordedTypes.of_files(data, train.files, "data.train")
    found = {"train": Split("train", train, data)}
    for name in ("validation", "test"):
        if patterns := getattr(data, name):
            files = find_evaluated_files(f"data.{name}", patterns, data)
            types.check(data, files.files)
            found[name] = Split(name, files, data)
    return found
