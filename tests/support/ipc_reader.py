"""A reader of a user's own, for tests that name it in a configuration: `data.reader = "ipc_reader:IpcReader"`."""

from contextlib import contextmanager

import fsspec
import pyarrow as pa

from trainer.data.readers.base import FileContents


class IpcReader:
    """Reads Arrow IPC files, each of whose record batches is a row group."""

    format = "Arrow IPC"
    suffix = ".arrow"

    def inspect(self, url):
        with fsspec.open(url) as file, pa.ipc.open_file(file) as opened:
            rows = tuple(opened.get_batch(i).num_rows for i in range(opened.num_record_batches))
            return FileContents(file.seek(0, 2), rows, opened.schema)

    @contextmanager
    def open(self, url, row_group, columns):
        with fsspec.open(url) as file, pa.ipc.open_file(file) as opened:
            yield pa.Table.from_batches([opened.get_batch(row_group)]).select(columns).column
