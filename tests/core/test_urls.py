"""Every part of a URL is kept: hosts, users, links of chains; what cannot be written to is refused at the start."""

import json
import re
import shutil
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from command import run_trainer, write_config
from jobs import config, write_rows
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer

from trainer.core.errors import StorageError
from trainer.core.storage import Frame, open_storage

ROWS = 1 << 19  # random numbers of 8 MB: fsspec reads smaller files at once, and a server without ranges goes unnoticed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A directory with data: two files in `rows/`, the same in two archives, and a large file."""
    folder = tmp_path_factory.mktemp("served")
    write_rows(folder / "rows", [300, 340])
    write_rows(folder / "large", [ROWS], row_group_size=ROWS)
    shutil.make_archive(str(folder / "rows"), "zip", folder, "rows")
    with tarfile.open(folder / "rows.tar", "w") as archive:
        archive.add(folder / "rows", "rows")
    return folder


class PartsHandler(SimpleHTTPRequestHandler):
    """Sends parts of files, which the one of the standard library does not."""

    def do_GET(self):
        file = Path(self.translate_path(self.path))
        if not (asked := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))) or not file.is_file():
            return super().do_GET()
        content, begin, end = file.read_bytes(), int(asked[1]), int(asked[2]) + 1
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {begin}-{min(end, len(content)) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content[begin:end])))
        self.end_headers()
        self.wfile.write(content[begin:end])


def serve(handler, folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def http(folder):
    """The URL of an HTTP server."""
    yield from serve(PartsHandler, folder)


@pytest.fixture(scope="module")
def whole(folder):
    """The URL of an HTTP server that sends files only whole."""
    yield from serve(SimpleHTTPRequestHandler, folder)


@pytest.fixture(scope="module")
def ftp(folder):
    """The URL of an FTP server with a user."""
    users = DummyAuthorizer()
    users.add_user("me", "PASSWORD", str(folder))
    server = FTPServer(("127.0.0.1", 0), type("Handler", (FTPHandler,), {"authorizer": users}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"timeout": 0.05}, daemon=True)
    thread.start()
    yield f"ftp://me:PASSWORD@127.0.0.1:{server.address[1]}"
    server.close_all()
    thread.join()


URLS = [
    "zip://rows::{folder}/rows.zip",
    "zip://rows/*.parquet::file://{folder}/rows.zip",
    "tar://rows::{folder}/rows.tar",
    "simplecache::file://{folder}/rows",
    "zip://rows::simplecache::{whole}/rows.zip",
    "simplecache::{whole}/rows/*.parquet",
    "{ftp}/rows/",
    "{ftp}/rows/part-*.parquet",
    "zip://rows::{ftp}/rows.zip",
    "{http}/rows/",
]


def train(tmp_path, name, url):
    """Trains on a URL and evaluates on it, and returns losses and evaluations."""
    tree = config(tmp_path, data__train=[url], data__validation=[url], evaluate={"every_steps": 10}, train__steps=10)
    out = tmp_path / name
    done = run_trainer("train", write_config(tmp_path / "config.toml", tree), "--out", out)
    assert done.returncode == 0, done.stderr
    assert "PASSWORD" not in done.stdout + done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines], (out / "evaluations.jsonl").read_text()


@pytest.fixture(scope="module")
def expected(folder, tmp_path_factory):
    return train(tmp_path_factory.mktemp("local"), "out", f"{folder}/rows")


@pytest.mark.few(3, "three stand for all")
@pytest.mark.parametrize("url", URLS)
def test_data_at_any_url_trains_as_the_same_files_do(folder, http, whole, ftp, expected, tmp_path, url):
    assert train(tmp_path, "out", url.format(folder=folder, http=http, whole=whole, ftp=ftp)) == expected


def test_a_server_that_sends_files_only_whole_is_read_through_a_copy(whole, tmp_path):
    file = write_config(tmp_path / "config.toml", config(tmp_path, train__steps=2))
    url = f"{whole}/large/part-00.parquet"
    refused = run_trainer("train", file, "--out", tmp_path / "refused", "--data.train", url)
    assert refused.returncode == 2
    assert "sends files only whole; write simplecache:: before its URL" in refused.stderr
    assert "Traceback" not in refused.stderr
    trained = run_trainer("train", file, "--out", tmp_path / "out", "--data.train", f"simplecache::{url}")
    assert trained.returncode == 0, trained.stderr


@pytest.mark.parametrize(
    ("url", "why"),
    [
        (
            "simplecache::file://{folder}/out",
            r"simplecache can be read here, but not written to|a chain of URLs cannot",
        ),
        ("zip://out::{folder}/rows.zip", "zip can be read here, but not written to|a chain of URLs cannot"),
        ("{http}/out", "http/https can be read here, but not written to"),
        ("{ftp}/out", "ftp can be read here, but not written to"),
        ("file://localhost{folder}/out", "a file:// URL has no host; write file:///"),
        ("ftp:///out", "it names no host"),
    ],
)
@pytest.mark.parametrize("command", ["train --out", "check-data --page", "vocabulary --columns s0 --out"])
def test_what_cannot_be_written_to_is_refused_at_the_start(folder, http, ftp, tmp_path, url, why, command):
    url, (name, *flags) = url.format(folder=folder, http=http, ftp=ftp), command.split()
    if name == "train":
        flags.insert(0, write_config(tmp_path / "config.toml", config(folder / "rows")))
    else:
        flags = ["--source", folder / "rows", *flags]
    done = run_trainer(name, *flags, url)
    assert done.returncode == 2
    assert re.search(why, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("\n") < 3  # nothing was done first
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("url", "path", "name", "expected"),
    [
        ("abfs://c@a.dfs.core.windows.net/logs/*.csv", "c/logs/*.csv", "c/logs/1.csv", "abfs://c@a.dfs.core.windows.net/logs/1.csv"),
        ("abfs://c@a.dfs.core.windows.net/", "c", "c/1.csv", "abfs://c@a.dfs.core.windows.net/1.csv"),
        ("hdfs://node:8020/logs", "/logs", "/logs/1.csv", "hdfs://node:8020/logs/1.csv"),
        ("github://org:repo@main/logs", "logs", "logs/1.csv", "github://org:repo@main/logs/1.csv"),
    ],
)  # fmt: skip
def test_urls_of_storage_that_cannot_be_had_here(url, path, name, expected):
    assert Frame.of(url, path).around(name) == expected


def test_a_url_of_a_path_opens_that_path(folder):
    for url in ("zip://rows::{}/rows.zip", "simplecache::zip://rows/::{}/rows.zip", "{}/rows", "file://{}/rows"):
        fs, path = open_storage(url.format(folder))
        name = f"{path}/part-00.parquet"
        there, found = open_storage(fs.url_of(name))
        assert there.cat_file(found) == (folder / "rows/part-00.parquet").read_bytes()


def test_what_fsspec_refuses_is_of_storage():
    with pytest.raises(StorageError, match="Protocol not known"):
        open_storage("nowhere://x")
