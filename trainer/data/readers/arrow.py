"""Reads Arrow IPC files, also known as Feather files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem

from trainer.data.readers.base import Column, FileContents
from trainer.data.readers.formats import ENDS


class ArrowReader:
    """Reads Arrow IPC files; a row group is a record batch."""

    format = "Arrow IPC"
    suffix = ENDS["arrow"]
    inspects_file_alone = True
    columns_at_once = True

    def inspect(self, url: str) -> FileContents:
        """Returns the outline of a file."""
        with _opened(url, []) as file:
            schema = file.schema
        # The footer does not hold the number of rows of a batch, so a column is read; all would be the whole file.
        with _opened(url, schema.names[:1]) as file:
            rows = tuple(file.get_batch(number).num_rows for number in range(file.num_record_batches))
        fs, path = fsspec.core.url_to_fs(url)
        return FileContents(fs.size(path), rows, schema)

    @contextmanager
    def open(self, url: str, row_group: int, columns: Sequence[str]) -> Iterator[Column]:
        """Opens a record batch."""
        with _opened(url, columns) as file:
            batch = file.get_batch(row_group)
        # Validated, because Arrow trusts the offsets and lengths in a file and would read beyond its buffers.
        batch.validate(full=True)
        yield pa.Table.from_batches([batch]).column


@contextmanager
def _opened(url: str, columns: Sequence[str]) -> Iterator[pa.ipc.RecordBatchFileReader]:
    """Opens a file to read some of its columns."""
    fs, path = fsspec.core.url_to_fs(url)
    with pa.OSFile(path) if isinstance(fs, LocalFileSystem) else fs.open(path, "rb") as source:
        with pa.ipc.open_file(source) as file:
            names = file.schema.names
        fields = [names.index(name) for name in columns]
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        with pa.ipc.open_file(source, options=options) as file:
            yield file
