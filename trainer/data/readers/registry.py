"""Readers by the name of their file format."""

from trainer.config.data import DataConfig
from trainer.core.registry import find_by_name
from trainer.data.readers.base import Reader

READERS = {
    "parquet": "trainer.data.readers.parquet:ParquetReader",
    "csv": "trainer.data.readers.csv:CsvReader",
    "tsv": "trainer.data.readers.csv:CsvReader",
    "arrow": "trainer.data.readers.arrow:ArrowReader",
}


def make_reader(config: DataConfig) -> Reader:
    """Makes the reader that `data.reader` names.

    Raises:
        InputError: There is no such reader, or it cannot be imported.
    """
    found = find_by_name("data.reader", config.reader, READERS)
    return found.from_config(config) if hasattr(found, "from_config") else found()
