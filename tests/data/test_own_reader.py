"""A reader of the user's own: the same rows in files of another format train the same model."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from jobs import config, launch, losses

from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.loader import Loader
from trainer.data.order import Lanes

READER = "ipc_reader:IpcReader"


@pytest.fixture(scope="module")
def arrow_rows(rows, tmp_path_factory):
    """The rows of `rows`, in Arrow IPC files whose record batches are the row groups there."""
    folder = tmp_path_factory.mktemp("arrow")
    for file in rows.glob("*.parquet"):
        with (
            pq.ParquetFile(file) as source,
            pa.ipc.new_file(folder / f"{file.stem}.arrow", source.schema_arrow) as sink,
        ):
            for index in range(source.num_row_groups):
                sink.write_table(source.read_row_group(index))
    return folder


def batches(data, **changes):
    settings = Config.model_validate(config(data, **changes)).data
    files = find_files("data.train", settings.train, settings)
    return list(Loader(files, settings, Lanes(files.rows, 8, 64), 0, 1, seed=3, shuffle=True).batches(0, 6))


def test_the_same_rows_give_the_same_batches(rows, arrow_rows):
    for parquet, own in zip(batches(rows), batches(arrow_rows, data__reader=READER), strict=True):
        assert torch.equal(parquet.dense, own.dense)
        assert torch.equal(parquet.labels, own.labels)
        assert torch.equal(parquet.sparse.values(), own.sparse.values())


def test_trains_alike(rows, arrow_rows, tmp_path):
    jobs = [
        {"config": config(rows, train__steps=3), "out": str(tmp_path / "parquet")},
        {"config": config(arrow_rows, train__steps=3, data__reader=READER), "out": str(tmp_path / "own")},
    ]
    launch(jobs, 1, tmp_path)
    assert losses(tmp_path / "own") == losses(tmp_path / "parquet")


def test_messages_name_the_format(arrow_rows, tmp_path):
    with pytest.raises(InputError, match=r"data\.train: no Arrow IPC file at"):
        batches(tmp_path, data__reader=READER)
    (tmp_path / "cut.arrow").write_bytes(next(arrow_rows.iterdir()).read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cut\.arrow: cannot be read as Arrow IPC, is it whole\?"):
        batches(tmp_path, data__reader=READER)


@pytest.mark.parametrize(
    ("name", "message"), [("parket", "did you mean 'parquet'"), ("no:Reader", "cannot be imported")]
)
def test_no_such_reader(rows, name, message):
    with pytest.raises(InputError, match=rf"data\.reader is '{name}'.*{message}"):
        batches(rows, data__reader=name)
