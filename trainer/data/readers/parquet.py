"""Row groups to columns: what leaves this file is Arrow's."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from trainer.core.errors import InputError
from trainer.core.storage import os_errors
from trainer.data.dataset import FileSet, RowGroup, first_line

Column = Callable[[str], pa.ChunkedArray]


class RowGroupReader:
    """Reads row groups and keeps each file's footer.

    Args:
        files: The data set.
        columns: The columns to read.
    """

    def __init__(self, files: FileSet, columns: Iterable[str]) -> None:
        self._files, self._columns = files, list(dict.fromkeys(columns))
        self._footers: dict[str, pq.FileMetaData] = {}

    @contextmanager
    def open(self, group: RowGroup) -> Iterator[Column]:
        """Opens a row group and yields what gives its columns.

        From a local file they are read one by one, so that each is still in the cache when it is used. Any other file
        system is asked for all of them at once.

        Raises:
            InputError: The file is gone or damaged.
        """
        with self._opened(group) as (file, local):
            if local:
                yield lambda name: self._read(file, group, [name]).column(name)
            else:
                yield self._read(file, group, self._columns).column

    def read(self, group: RowGroup) -> Column:
        """Reads all columns of a row group; the same errors."""
        with self._opened(group) as (file, _):
            return self._read(file, group, self._columns).column

    @contextmanager
    def _opened(self, group: RowGroup) -> Iterator[tuple[pq.ParquetFile, bool]]:
        url = self._files.files[group.file].url
        fs, path = fsspec.core.url_to_fs(url)
        local = isinstance(fs, LocalFileSystem)
        try:
            with os_errors():
                opened = pq.ParquetFile(path, filesystem=fs, metadata=self._footers.get(url), pre_buffer=not local)
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(group, error) from error
        with opened as file:
            self._footers.setdefault(url, file.metadata)
            yield file, local

    def _read(self, file: pq.ParquetFile, group: RowGroup, columns: list[str]) -> pa.Table:
        try:
            with os_errors():
                return file.read_row_group(group.index, columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise self._unreadable(group, error) from error

    def _unreadable(self, group: RowGroup, error: BaseException) -> InputError:
        return InputError(f"{self.where(group)}: cannot be read, is it whole? ({first_line(error)})")

    def where(self, group: RowGroup) -> str:
        """Returns what a message calls a row group."""
        return f"{self._files.files[group.file].url}, row group {group.index}"


@dataclass
class SharedRowGroup:
    """A row group that several windows have rows of; it is read once, and kept until the last of them has it.

    Attributes:
        uses: How many windows still need it.
    """

    uses: int
    _columns: Column | None = None
    _lock: Lock = field(default_factory=Lock)

    def take(self, read: Callable[[], Column]) -> Column:
        """Returns the columns, read by the first to come."""
        with self._lock:
            columns = self._columns or read()
            self.uses -= 1
            self._columns = columns if self.uses else None
            return columns


def shared(groups: Iterable[RowGroup]) -> dict[RowGroup, SharedRowGroup]:
    """Returns those row groups that come more than once."""
    return {group: SharedRowGroup(uses) for group, uses in Counter(groups).items() if uses > 1}
