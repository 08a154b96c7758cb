"""Opens the row groups of a data set, and shares those that several windows need."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa

from trainer.config.data import DataConfig
from trainer.data.dataset import FileSet, RowGroup, readable
from trainer.data.readers.base import Column
from trainer.data.readers.registry import make_reader


class RowGroupReader:
    """Reads columns of row groups.

    Args:
        files: The data set.
        config: Names the reader.
        columns: The columns. Unset: those that training needs.
    """

    def __init__(self, files: FileSet, config: DataConfig, columns: Sequence[str] | None = None) -> None:
        self._files, self._reader = files, make_reader(config)
        self._columns = config.columns if columns is None else [*columns]

    @contextmanager
    def open(self, group: RowGroup) -> Iterator[Column]:
        """Opens a row group, whose columns may be read only as they are asked for.

        Raises:
            InputError: The file is gone or damaged.
        """
        refused = f"{self.where(group)}: cannot be read"
        with ExitStack() as stack:
            with readable(refused):
                url = self._files.files[group.file].url
                column = stack.enter_context(self._reader.open(url, group.index, self._columns))

            def read(name: str) -> pa.ChunkedArray:
                with readable(refused):
                    return column(name)

            yield read

    def read(self, group: RowGroup) -> Column:
        """Reads all columns of a row group into memory; the same errors."""
        with self.open(group) as column:
            return {name: column(name) for name in self._columns}.__getitem__

    def where(self, group: RowGroup) -> str:
        """Returns what messages call a row group."""
        return f"{self._files.files[group.file].name}, row group {group.index}"


@dataclass
class SharedRowGroup:
    """A row group that several windows have rows of: read once, and kept until the last of them has it.

    Attributes:
        uses: Windows that still need it.
    """

    uses: int
    _columns: Column | None = None
    _lock: Lock = field(default_factory=Lock)  # lanes are read by threads, and two may need the same row group

    def take(self, read: Callable[[], Column]) -> Column:
        """Returns the columns, which the first caller reads."""
        with self._lock:
            columns = self._columns or read()
            self.uses -= 1
            self._columns = columns if self.uses else None
            return columns


def shared(groups: Iterable[RowGroup]) -> dict[RowGroup, SharedRowGroup]:
    """Returns the row groups that occur more than once."""
    # Counting uses replaced two caches by size, which could not know that a row group's last use was over.
    return {group: SharedRowGroup(uses) for group, uses in Counter(groups).items() if uses > 1}
