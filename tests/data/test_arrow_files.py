"""Arrow IPC files: record batches are row groups."""

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from csv_files import blocks_of, read_all
from jobs import config

from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

TABLE = pa.table(
    {
        "unused": ["a", "b", "c"] * 100,
        "x": pa.array(np.arange(300) / 7),
        "id": pa.array([[n, n + 1] if n % 3 else None for n in range(300)]),
        "label": pa.array(np.arange(300) % 2, pa.int8()),
    }
)
DATA = {"reader": "arrow", "dense": {"x": {}}, "sparse": {"id": {"rows": 1000}}}


@pytest.fixture
def data():
    return DataConfig.model_validate(DATA)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("suffix", [".arrow", ".feather"])
def test_the_columns_come_back(tmp_path, data, compression, suffix):
    file = tmp_path / f"a{suffix}"
    if suffix == ".feather":
        feather.write_feather(TABLE, file, compression or "uncompressed", chunksize=70)
    else:
        with pa.ipc.new_file(file, TABLE.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as sink:
            sink.write_table(TABLE, max_chunksize=70)
    assert blocks_of(tmp_path, data) == [70, 70, 70, 70, 20]
    assert read_all(tmp_path, data).equals(TABLE.select(["x", "id", "label"]))


def test_the_same_rows_give_the_same_batches_as_parquet(rows, tmp_path):
    for file in rows.glob("*.parquet"):
        with (
            pq.ParquetFile(file) as source,
            pa.ipc.new_file(tmp_path / f"{file.stem}.ipc", source.schema_arrow) as sink,
        ):
            for index in range(source.num_row_groups):
                sink.write_table(source.read_row_group(index))

    def batches(folder, **changes):
        settings = Config.model_validate(config(folder, **changes)).data
        files = find_files("data.train", settings.train, settings)
        return list(Loader(files, settings, Lanes(files.rows, 8, 64), 0, 1, seed=3, shuffle=True).batches(0, 6))

    for parquet, arrow in zip(batches(rows), batches(tmp_path, data__reader="arrow"), strict=True):
        assert torch.equal(parquet.dense, arrow.dense)
        assert torch.equal(parquet.labels, arrow.labels)
        assert torch.equal(parquet.sparse.values(), arrow.sparse.values())


@pytest.mark.parametrize(
    "content", [b"", b"ARROW1\0\0", b"x,y\n1,2\n", "half"], ids=["empty", "begun", "text", "truncated"]
)
def test_other_files_are_refused(tmp_path, data, content):
    feather.write_feather(TABLE, tmp_path / "whole", "uncompressed")
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "a.arrow").write_bytes(whole[: len(whole) // 2] if content == "half" else content)
    with pytest.raises(
        InputError, match=r"a\.arrow: cannot be read as Arrow IPC, (is it whole\? \(\S|and begins like CSV)"
    ):
        read_all(tmp_path / "a.arrow", data)


def test_damaged_values_are_refused(tmp_path, data):
    feather.write_feather(TABLE, tmp_path / "a.arrow", "uncompressed")
    content = (tmp_path / "a.arrow").read_bytes()
    offsets = np.concatenate([[0], np.cumsum(np.arange(300) % 3 != 0) * 2]).astype(np.int32).tobytes()
    assert content.count(offsets) == 1
    damaged = np.frombuffer(offsets, np.int32).copy()
    damaged[150] = 2**30
    (tmp_path / "a.arrow").write_bytes(content.replace(offsets, damaged.tobytes()))
    with pytest.raises(InputError, match=r"a\.arrow, row group 0: cannot be read, is it whole\?"):
        read_all(tmp_path / "a.arrow", data)
