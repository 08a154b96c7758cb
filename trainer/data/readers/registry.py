"""Readers by the name of their file format."""

from trainer.config.data import DataConfig
from trainer.core.registry import find_by_name
from trainer.data.readers.base import Reader

READERS = {"parquet": "trainer.data.readers.parquet:ParquetReader"}


def make_reader(config: DataConfig) -> Reader:
    """Makes the reader that `data.reader` names.

    Raises:
        InputError: There is no such reader, or it cannot be imported.
    """
    return find_by_name("data.reader", config.reader, READERS)()
