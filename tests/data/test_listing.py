"""Which files a directory or a glob stands for: linked directories, hidden and temporary names, capital letters."""

import os

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.segments import look_at_segment, names_of_segments

HIDDEN = [
    ".part.parquet",
    "_copy.parquet",
    ".ipynb_checkpoints/a.parquet",
    "_temporary/0/task/a.parquet",
    "x/.b/a.parquet",
]
KEPT = ["a.parquet", "_day=1/a.parquet", "x/B.PARQUET"]


def write(root, names):
    for name in names:
        content = pa.BufferOutputStream()
        pq.write_table(pa.table({"label": [0, 1], "x": [1.0, 2.0]}), content)
        fs, path = fsspec.core.url_to_fs(f"{root}/{name}")
        fs.makedirs(os.path.dirname(path), exist_ok=True)
        fs.pipe_file(path, content.getvalue().to_pybytes())


def listed(pattern, below, **changes):
    config = DataConfig.model_validate({"train": [str(pattern)], "dense": {"x": {}}, "labels": ["label"]} | changes)
    return sorted(file.url.removeprefix(f"{below}/") for file in find_files("data.train", config.train, config).files)


@pytest.fixture(params=["local", "memory"])
def root(request, tmp_path):
    """A directory on a local disk, and one on storage of another kind."""
    if request.param == "local":
        yield tmp_path
        return
    url = f"memory:///{tmp_path.name}"
    yield url
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


@pytest.mark.parametrize("glob", ["", "/**/*.[pP][aA]*[tT]"])
def test_hidden_and_temporary_names_are_left_out_and_said(root, capfd, glob):
    write(root, KEPT + HIDDEN + ["_SUCCESS", ".a.parquet.crc"])  # of which no line is needed
    assert listed(f"{root}{glob}", root) == sorted(KEPT)
    (line,) = capfd.readouterr().out.splitlines()
    assert line.startswith("data.train: left out 5 paths, hidden or temporary: ")
    assert line.endswith(", and 4 more")


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("_copy.parquet", ["_copy.parquet"]),
        ("_temporary", ["_temporary/0/task/a.parquet"]),
        ("_temporary/*/task/*", ["_temporary/0/task/a.parquet"]),
        ("_c*.parquet", ["_copy.parquet"]),
        ("*.parquet", ["a.parquet"]),
        ("x/.?/*", ["x/.b/a.parquet"]),
    ],
)
def test_what_a_pattern_names_itself_stays(root, pattern, found):
    write(root, KEPT + HIDDEN)
    assert listed(f"{root}/{pattern}", root) == found


def test_a_directory_of_hidden_files_alone_says_so(tmp_path):
    write(tmp_path, ["_temporary/a.parquet"])
    with pytest.raises(InputError, match=r"no Parquet file .*left out 1 path, hidden or temporary: .*/_temporary\)"):
        listed(tmp_path, tmp_path)


def test_capital_letters_at_the_end_of_a_name(tmp_path):
    for name, content in (("a.CSV", b"label,x\n1,2\n"), ("b.csv", b"label,x\n0,1\n")):
        (tmp_path / name).write_bytes(content)
    with fsspec.open(tmp_path / "C.CSV.GZ", "wb", compression="gzip") as file:
        file.write(b"label,x\n1,3\n")
    assert listed(tmp_path, tmp_path, reader="csv", cache=str(tmp_path / "cache")) == ["C.CSV.GZ", "a.CSV", "b.csv"]


@pytest.mark.parametrize("glob", ["", "/**/*.parquet", "/*/*.parquet"])
def test_linked_directories_are_followed_once(tmp_path, capfd, glob):
    root, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    write(root, ["day=1/a.parquet"])
    write(elsewhere, ["b.parquet", "deep/c.parquet"])
    (root / "day=2").symlink_to(elsewhere)
    (root / "latest").symlink_to(root / "day=1")
    (root / "again").symlink_to(root)
    (elsewhere / "deep" / "up").symlink_to(elsewhere)
    (root / "day=1" / "outside").symlink_to(tmp_path)
    deep = ["day=2/deep/c.parquet"] if glob != "/*/*.parquet" else []
    assert listed(f"{root}{glob}", root) == ["day=1/a.parquet", "day=2/b.parquet", *deep]
    (line,) = capfd.readouterr().out.splitlines()
    assert line == f"data.train: left out {4 if deep else 2} paths, linked to what is listed already: " + (
        f"{root}/again, and {3 if deep else 1} more"
    )


def test_a_directory_that_is_closed_is_said(tmp_path, capfd, monkeypatch):
    write(tmp_path, ["a.parquet", "closed/b.parquet"])
    opened = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return opened(path)

    monkeypatch.setattr(os, "scandir", scandir)  # the tests may run as root, to whom nothing is closed
    assert listed(tmp_path, tmp_path) == ["a.parquet"]
    assert "left out 1 path, closed to this user: " in capfd.readouterr().out


def test_segments_have_no_hidden_names(tmp_path):
    write(tmp_path, ["mon/a.parquet", "mon/_temporary/b.parquet", "_temporary/a.parquet", ".tue/a.parquet"])
    (tmp_path / "wed").symlink_to(tmp_path / "mon")
    config = DataConfig.model_validate(
        {"segments": {"path": f"{tmp_path}/{{segment}}"}, "dense": {"x": {}}, "labels": ["label"]}
    )
    assert names_of_segments(config.segments) == ["mon", "wed"]
    assert [len(look_at_segment(config, name).files) for name in ("mon", "wed")] == [1, 1]
    assert "_temporary" in look_at_segment(config, "mon").left_out[0]
