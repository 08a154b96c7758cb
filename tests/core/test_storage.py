"""Storage on any fsspec URL: files are replaced whole, and every library fails alike, in one line without secrets."""

import errno
import os
import pickle
import re

import pytest

from trainer.core.errors import (
    InputError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StoragePermissionError,
)
from trainer.core.storage import named, open_storage, os_errors, read_text, write_file


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    """A storage and an empty directory there."""
    fs, path = open_storage(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}")
    fs.makedirs(path)
    yield fs, path
    fs.rm(path, recursive=True)


def test_a_file_is_replaced_whole(folder):
    fs, path = folder
    for content in (b"the first", b"2"):
        fs.write(f"{path}/file", content)
        assert fs.cat_file(f"{path}/file") == content
        assert [found.rpartition("/")[2] for found in fs.ls(path, detail=False)] == ["file"]


def test_a_file_is_created_whole_and_once(folder):
    fs, path = folder
    fs.create(f"{path}/file", b"the first")
    with pytest.raises(StorageExistsError):
        fs.create(f"{path}/file", b"the second")
    assert fs.cat_file(f"{path}/file") == b"the first"
    assert [found.rpartition("/")[2] for found in fs.ls(path, detail=False)] == ["file"]


def test_a_file_is_created_where_there_are_no_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    fs, path = open_storage(str(tmp_path))
    fs.create(f"{path}/file", b"the first")
    with pytest.raises(StorageExistsError):
        fs.create(f"{path}/file", b"the second")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"file": b"the first"}


@pytest.mark.parametrize("content", ["ä text\n", "ä text\n".encode()])
def test_the_file_of_a_flag_is_written_or_refused_by_its_name(tmp_path, content):
    write_file("--page", f"{tmp_path}/page", content)
    assert read_text(f"{tmp_path}/page") == "ä text\n"
    with pytest.raises(InputError, match=rf"^--page is '{tmp_path}', which cannot be used: .*Is a directory"):
        write_file("--page", str(tmp_path), content)


def test_a_directory_is_made_once(folder):
    fs, path = folder
    fs.makedirs(f"{path}/a/b")
    fs.write(f"{path}/a/b/file", b"x")
    fs.makedirs(f"{path}/a/b")
    assert fs.cat_file(f"{path}/a/b/file") == b"x"


def test_a_write_syncs_the_file_and_both_directories(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def spy(file):
        synced.append((os.readlink(f"/proc/self/fd/{file}"), os.fstat(file).st_size))
        fsync(file)

    monkeypatch.setattr(os, "fsync", spy)
    fs, path = open_storage(f"{tmp_path}/run")
    fs.makedirs(path)
    fs.write(f"{path}/file", b"content")
    assert re.fullmatch(rf"{path}/file\.\w{{8}}\.partial", synced[0][0])
    assert synced[0][1] == len("content")
    assert [name for name, _ in synced[1:]] == [path, str(tmp_path)]


def test_writers_of_one_file_do_not_share_what_they_write(tmp_path):
    fs, path = open_storage(f"{tmp_path}/file")
    with fs.whole(path) as first:
        first.write(b"first")
        with fs.whole(path) as second:
            second.write(b"second, which is longer")
        fs.write(path, b"third")
    assert fs.cat_file(path) == b"first"
    with pytest.raises(ZeroDivisionError), fs.whole(path):
        _ = 1 / 0
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_missing_file_is_not_found(folder):
    fs, path = folder
    with pytest.raises(StorageNotFoundError, match="nothing"):
        fs.cat_file(f"{path}/nothing")


def test_a_directory_that_exists_is_not_made_again(folder):
    fs, path = folder
    fs.mkdir(f"{path}/a")
    with pytest.raises(StorageExistsError, match="/a"):
        fs.mkdir(f"{path}/a")


class CloudError(Exception):
    """Stands for the error types of the clouds' libraries."""


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file", "file"), StorageNotFoundError),
        (FileNotFoundError("file"), StorageNotFoundError),
        (FileExistsError("file"), StorageExistsError),
        (PermissionError(errno.EACCES, "Permission denied", "file"), StoragePermissionError),
        (OSError(errno.ENOSPC, "No space left on device", "file"), StorageError),
        (ConnectionResetError("hung up: file"), StorageError),
        (CloudError("503: slow\n  down: file"), StorageError),
        (CloudError(), StorageError),
    ],
)
def test_every_library_fails_alike(raised, expected):
    with pytest.raises(StorageError) as caught, os_errors("file"):
        raise raised
    assert type(caught.value) is expected
    assert "file" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.errno == getattr(raised, "errno", None)
    sent = pickle.loads(pickle.dumps(caught.value))
    assert (type(sent), str(sent)) == (expected, str(caught.value))


@pytest.mark.parametrize("bug", [ValueError("x"), KeyError("x"), TypeError("x"), ModuleNotFoundError("x")])
def test_bugs_are_not_taken_for_storage(bug):
    with pytest.raises(type(bug)), os_errors("file"):
        raise bug


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EIO, "no answer from ftp://me:password@host"), CloudError("no answer from ftp://me:password@host")],
)
def test_a_refused_url_is_named_without_its_secrets(error):
    message = r"^--out is 'ftp://\*\*\*@host/run', which cannot be used: .*ftp://\*\*\*@host.*; check the URL"
    with pytest.raises(InputError, match=message), named("--out", "ftp://me:password@host/run"):
        raise error


def test_an_unknown_protocol_is_the_users_mistake():
    message = r"^data.train is 'nowhere://x', which cannot be used: .*Protocol not known"
    with pytest.raises(InputError, match=message), named("data.train", "nowhere://x"):
        open_storage("nowhere://x")


@pytest.mark.parametrize("url", ["s3://", "s3:", "gs:///"])
def test_a_url_needs_more_than_a_scheme(url):
    with (
        pytest.raises(
            InputError, match=rf"--out is '{url}', which .*no bucket or directory there; write a local path, or"
        ),
        named("--out", url),
    ):
        open_storage(url.rstrip("/"))
