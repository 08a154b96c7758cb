"""Storage that fails while data is read: no fault of the data, so another attempt may read it."""

import errno
import io

import fsspec
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from trainer.config.data import DataConfig
from trainer.config.features import DenseFeature
from trainer.core.errors import InputError, StorageError
from trainer.data.dataset import find_files
from trainer.data.row_groups import RowGroupReader

TABLE = pa.table({"x": [0.5] * 300, "label": [0.0, 1.0, 1.0] * 100})
WRITERS = {"parquet": pq.write_table, "arrow": feather.write_feather, "csv": pa_csv.write_csv}


class CloudError(Exception):
    """What a library of an object store raises."""


class FailingFile(io.BytesIO):
    """A file with a size, of which no byte can be read."""

    def read(self, *_):
        raise FailingFileSystem.failure


class FailingFileSystem(MemoryFileSystem):
    """Memory that fails once `failure` is set."""

    protocol = "failing"
    store: dict = {}
    failure: Exception | None = None

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("failing://"))

    def _open(self, path, mode="rb", **options):
        return FailingFile(super().cat_file(path)) if self.failure else super()._open(path, mode, **options)

    def cat_file(self, path, **options):
        if self.failure:
            raise self.failure
        return super().cat_file(path, **options)


@pytest.fixture(params=[*WRITERS])
def config(request, tmp_path, monkeypatch):
    """A data section with one file."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # of the indexes of CSV
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    url = f"failing://data/part.{request.param}"
    with fsspec.open(url, "wb") as file:
        WRITERS[request.param](TABLE, file)
    yield DataConfig(train=[url], dense={"x": DenseFeature()}, labels=["label"], reader=request.param)
    FailingFileSystem.store.clear()


@pytest.mark.parametrize(
    "failure",
    [OSError(errno.EIO, "Input/output error"), TimeoutError("no answer"), CloudError("503 Slow Down")],
    ids=lambda failure: type(failure).__name__,
)
def test_a_failure_of_storage_is_no_wrong_input(config, monkeypatch, tmp_path, failure):
    found = find_files("data.train", config.train, config)
    reader, reason = RowGroupReader(found, config), str(failure.args[-1])
    monkeypatch.setattr(FailingFileSystem, "failure", failure)
    with pytest.raises(StorageError, match=rf"failing:///data/part\..*: cannot be read \(.*{reason}"):
        reader.read(found.row_groups[0])
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}/empty")
    with pytest.raises(StorageError, match=rf"failing:///data/part\..*: cannot be read as .* \(.*{reason}"):
        find_files("data.train", config.train, config)


def test_access_that_is_refused_is_wrong_input(config, monkeypatch):
    found = find_files("data.train", config.train, config)
    monkeypatch.setattr(FailingFileSystem, "failure", PermissionError(errno.EACCES, "Permission denied"))
    with pytest.raises(InputError, match=r"cannot be read \(.*Permission denied"):
        RowGroupReader(found, config).read(found.row_groups[0])
