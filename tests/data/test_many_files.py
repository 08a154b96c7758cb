"""Data sets of many files: their outlines are kept from start to start, and what is kept never changes the result."""

import hashlib
import io
import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_store import object_store

from trainer.config.data import DataConfig
from trainer.data import dataset, file_outlines
from trainer.data import files as files_module
from trainer.data.dataset import find_files
from trainer.data.readers.parquet import ParquetReader

FILES = 300


class CountingReader(ParquetReader):
    """Reads Parquet files, and notes of which it read the footer."""

    inspected: list[str] = []

    def inspect(self, url):
        self.inspected.append(url.rpartition("/")[2])
        return super().inspect(url)


def content(rows, **columns):
    sink = io.BytesIO()
    numbers = {"x": pa.array([0.5] * rows, pa.float32()), "label": pa.array([1.0] * rows, pa.float32())}
    table = pa.table(numbers | columns)
    pq.write_table(table, sink, row_group_size=2)
    return sink.getvalue()


CONTENTS = [content(1), content(3), content(5, more=pa.array([1] * 5, pa.int32())), content(0)]


def write(folder, number, kind):
    day = Path(folder, f"day={number % 3}")
    day.mkdir(parents=True, exist_ok=True)
    (day / f"part-{number:04d}.parquet").write_bytes(CONTENTS[kind])


@pytest.fixture
def folder(tmp_path):
    for number in range(FILES):
        write(tmp_path / "data", number, number % len(CONTENTS))
    return tmp_path / "data"


def config(source, tmp_path, **changes):
    settings = {"train": [str(source)], "dense": {"x": {}, "day": {}}, "reader": f"{__name__}:CountingReader"}
    return DataConfig.model_validate(settings | {"cache": str(tmp_path / "cache")} | changes)


def find(data):
    """Returns the files, and the names of those whose footers were read."""
    CountingReader.inspected.clear()
    files = find_files("data.train", data.train, data)
    return files, sorted(CountingReader.inspected)


def find_afresh(data, tmp_path):
    return find(data.model_copy(update={"cache": str(tmp_path / f"fresh-{random.random()}")}))[0]


@pytest.mark.parametrize("pattern", ["", "/day=*/*.parquet", "/**/*.parquet"])
def test_the_second_start_reads_no_footers(folder, tmp_path, pattern):
    data = config(f"{folder}{pattern}", tmp_path)
    first, read = find(data)
    assert len(read) == FILES
    second, read = find(data)
    assert not read
    assert first == second
    assert [*first.files] == [*second.files]
    assert (first.row_groups, first.fingerprint) == (second.row_groups, second.fingerprint)


def test_what_changed_is_read_again(folder, tmp_path):
    data = config(folder, tmp_path)
    before, _ = find(data)
    random.seed(5)
    for _ in range(4):
        changed, gone, new = (
            random.sample(range(FILES), 3),
            random.sample(range(FILES), 3),
            FILES + random.randrange(99),
        )
        for number in [*changed, new]:
            path = folder / f"day={number % 3}" / f"part-{number:04d}.parquet"
            earlier = path.stat().st_mtime if path.exists() else 0
            write(folder, number, random.randrange(len(CONTENTS)))
            os.utime(path, (earlier + 9, earlier + 9))
        for number in {*gone} - {*changed}:
            (folder / f"day={number % 3}" / f"part-{number:04d}.parquet").unlink(missing_ok=True)
        after, read = find(data)
        assert {*read} == {f"part-{number:04d}.parquet" for number in [*changed, new]}
        assert after == find_afresh(data, tmp_path)
        assert after != before


def test_the_target_of_a_link_counts(folder, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(CONTENTS[0])
    (folder / "linked.parquet").symlink_to(target)
    data = config(folder, tmp_path, dense={"x": {}})
    for pattern in (folder, f"{folder}/**/*.parquet"):
        data = data.model_copy(update={"train": [str(pattern)]})
        find(data)
        target.write_bytes(CONTENTS[1] if target.read_bytes() == CONTENTS[0] else CONTENTS[0])
        os.utime(target, (7, 7))
        files, read = find(data)
        assert read == ["linked.parquet"]
        assert files == find_afresh(data, tmp_path)
        os.utime(target, (9, 9))


def test_a_file_of_the_same_size_and_date_is_read_again(folder, tmp_path):
    data = config(folder, tmp_path)
    find(data)
    path = folder / "day=0" / "part-0000.parquet"
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert find(data)[1] == [path.name]
    assert find(data)[1] == []


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-9], lambda whole: whole[:900] + b"?" + whole[901:], lambda _: b"?"]
)
def test_a_damaged_cache_is_made_again(folder, tmp_path, capfd, damage):
    data = config(folder, tmp_path)
    whole, _ = find(data)
    (kept,) = (tmp_path / "cache").iterdir()
    kept.write_bytes(damage(kept.read_bytes()))
    capfd.readouterr()
    files, read = find(data)
    assert (files, len(read)) == (whole, FILES)
    (line,) = capfd.readouterr().out.splitlines()
    assert "data.train" in line
    assert "damaged" in line
    assert not find(data)[1]


def test_a_cache_that_cannot_be_used_is_done_without(folder, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    data = config(folder, tmp_path, cache=str(tmp_path / "file"))
    assert find(data)[0] == find_afresh(data, tmp_path)
    (line,) = capfd.readouterr().out.splitlines()
    assert f"data.cache is '{tmp_path}/file'" in line


def test_few_files_leave_the_cache_alone(tmp_path):
    write(tmp_path / "data", 0, 0)
    find(config(tmp_path / "data", tmp_path))
    assert not (tmp_path / "cache").exists()


def test_several_jobs_that_start_together(folder, tmp_path):
    data = config(folder, tmp_path)
    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(lambda _: find_files("data.train", data.train, data), range(4))]
    assert all(one == found[0] for one in found)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".outlines"]
    assert not find(data)[1]


def test_ranks_receive_equal_files(folder, tmp_path):
    files, _ = find(config(folder, tmp_path))
    sent = pickle.dumps(files)
    assert pickle.loads(sent) == files
    assert len(sent) < 40 * FILES  # URLs are longer


def test_earlier_checkpoints_have_the_same_fingerprint(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(files_module, "AT_ONCE", 64)
    files, _ = find(config(folder, tmp_path))
    outline = [(file.name, file.size_bytes, file.row_groups, file.lists) for file in files.files]
    assert files.fingerprint == hashlib.sha256(repr(outline).encode()).hexdigest()[:16]


def test_a_checkpoint_of_too_many_files_names_none(folder, tmp_path, monkeypatch):
    data = config(folder, tmp_path)
    before, _ = find(data)
    named = before.description()
    assert len(named["files"]) == FILES
    monkeypatch.setattr(dataset, "NAMED_FILES", FILES - 1)
    saved = before.description()
    assert "files" not in saved
    assert saved["fingerprint"] == named["fingerprint"]
    write(folder, FILES, 1)
    after, _ = find(data)
    assert after.change_since(named) == f"{folder}/day=0/part-0300.parquet is new"
    rows, size = before.rows, named["bytes"]
    now = f"now 301, {size + len(CONTENTS[1]):,} and {rows + 3:,}"
    assert after.change_since(saved) == f"it had 300 files, {size:,} bytes and {rows:,} rows, {now}"
    (folder / "day=0" / "part-0300.parquet").rename(folder / "day=0" / "renamed.parquet")
    assert "a name" in find(data)[0].change_since(after.description())


def test_footers_on_an_object_store(tmp_path, monkeypatch):
    monkeypatch.setattr(file_outlines, "LEAST_FILES", 9)
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.fs.mkdir("bucket")
        store.fs.pipe({f"bucket/day=1/part-{n:04d}.parquet": CONTENTS[n % 4] for n in range(20)})
        data = config("s3://bucket", tmp_path, cache="s3://cache/c")
        store.fs.mkdir("cache")
        first, read = find(data)
        assert len(read) == 20
        with store.faults({"fault": "slow", "seconds": 0}) as requests:
            second, read = find(data)
            assert not read
            assert requests() < 9
        assert first == second
        store.fs.pipe({"bucket/day=1/part-0003.parquet": CONTENTS[1]})
        changed, read = find(data)
        assert read == ["part-0003.parquet"]
        assert changed.rows == first.rows + 3


def test_a_url_with_a_secret_is_not_kept(tmp_path):
    fs = fsspec.filesystem("memory")
    names = [f"/many/part-{number}.parquet?token=abc" for number in range(FILES)]
    for name in names:
        fs.pipe_file(name, CONTENTS[0])
    data = config("", tmp_path, train=[f"memory:/{name}" for name in names], dense={"x": {}})
    assert len(find(data)[1]) == FILES
    assert not (tmp_path / "cache").exists()
    fs.rm("/many", recursive=True)


def test_patterns_that_overlap_list_a_file_once(folder, tmp_path):
    day = folder / "day=1"
    patterns = [str(day / "part-0301.parquet"), str(day), f"{folder}/day=*/*.parquet"]
    write(folder, 301, 1)
    names = [file.url for file in find(config(folder, tmp_path, train=patterns))[0].files]
    assert names == sorted(str(file) for file in folder.rglob("*.parquet"))
