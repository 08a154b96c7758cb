"""A reader of the user's own: the same rows in files of another format train the same model."""

import json
import re
from contextlib import contextmanager
from pathlib import Path
from threading import current_thread

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from ipc_reader import IpcReader
from jobs import config, launch, losses
from pyarrow import orc
from table_service import TableService

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

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


def test_one_thread_asks_a_reader_for_columns_unless_it_says_that_several_may(rows, arrow_rows, monkeypatch):
    asked: list[set[str]] = []

    @contextmanager
    def opened(self, *row_group, whole=IpcReader.open):
        threads = set()
        asked.append(threads)
        with whole(self, *row_group) as column:
            yield lambda name: threads.add(current_thread().name) or column(name)

    monkeypatch.setattr(IpcReader, "open", opened)
    for several in (False, True):
        asked.clear()
        monkeypatch.setattr(IpcReader, "columns_at_once", several, raising=False)
        batches(arrow_rows, data__reader=READER, data__read_threads=16)
        assert (max(map(len, asked)) > 1) == several


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


@pytest.fixture
def documented(tmp_path, monkeypatch):
    """A directory on the path with the readers of the documentation."""
    page = (Path(__file__).parents[2] / "docs" / "guides" / "own_reader.md").read_text()
    for code, name in re.findall(r"^```python\n(# (\w+\.py)\n.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("pattern", [".", "*/*"], ids=["directory", "glob"])
def test_the_documented_reader_of_orc(rows, documented, tmp_path, pattern):
    """Of a partitioned table, whose stripes of a batch each are the row groups of the same rows in Parquet."""
    for day, file in enumerate(sorted(rows.glob("*.parquet"))):
        table = pq.read_table(file)
        for name in ("orc", "parquet"):
            (tmp_path / name / f"day={day}").mkdir(parents=True)
        orc.write_table(table, tmp_path / f"orc/day={day}/part.orc", stripe_size=1, batch_size=128)
        pq.write_table(table, tmp_path / f"parquet/day={day}/part.parquet", row_group_size=128)
    assert orc.ORCFile(tmp_path / "orc/day=0/part.orc").nstripes > 1
    changes = {"data__sparse__day": {"rows": 9}, "train__steps": 3}
    own = {"data__reader": "orc_reader:OrcReader", **changes}
    for parquet, mine in zip(
        batches(tmp_path / "parquet" / pattern, **changes), batches(tmp_path / "orc" / pattern, **own), strict=True
    ):
        assert torch.equal(parquet.dense, mine.dense)
        assert torch.equal(parquet.sparse.values(), mine.sparse.values())
    jobs = [
        {"config": config(tmp_path / "parquet" / pattern, **changes), "out": str(tmp_path / "a")},
        {"config": config(tmp_path / "orc" / pattern, **own), "out": str(tmp_path / "b")},
    ]
    launch(jobs, 2, tmp_path)
    assert losses(tmp_path / "b") == losses(tmp_path / "a")
    (tmp_path / "orc/day=0/cut.orc").write_bytes((tmp_path / "orc/day=0/part.orc").read_bytes()[:-20])
    with pytest.raises(InputError, match=r"cut\.orc: cannot be read as ORC, is it whole\?"):
        batches(tmp_path / "orc" / pattern, **own)


def test_the_documented_reader_of_a_table_service(rows, documented, tmp_path):
    tables = tmp_path / "tables"
    tables.mkdir()
    same = tmp_path / "same"
    same.mkdir()
    with TableService(rows) as service:
        for file in rows.glob("*.parquet"):
            place = {"service": service.url, "table": file.stem}
            (tables / f"{file.stem}.table.json").write_text(json.dumps(place))
            # The service's splits are of 1000 rows.
            pq.write_table(pq.read_table(file), same / file.name, row_group_size=1000)
        own = batches(tables, data__reader="table_reader:TableReader")
        # Only `inspect` opens a session: the loader's own reader got its name as the index.
        assert len(service.sessions) == len(list(rows.glob("*.parquet")))
        assert service.reads
        jobs = [{"config": config(same, train__steps=3), "out": str(tmp_path / "parquet")}]
        other = config(tables, train__steps=3, data__reader="table_reader:TableReader")
        jobs.append({"config": other, "out": str(tmp_path / "own")})
        launch(jobs, 2, tmp_path)
    for parquet, table in zip(batches(same), own, strict=True):
        assert torch.equal(parquet.dense, table.dense)
        assert torch.equal(parquet.sparse.values(), table.sparse.values())
    assert losses(tmp_path / "own") == losses(tmp_path / "parquet")
    assert len(service.sessions) == 2 * len(list(rows.glob("*.parquet")))
