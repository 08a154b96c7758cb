"""Nothing that is printed holds a password or a token of a URL."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from command import run_trainer, write_config
from jobs import config, write_rows

from trainer.core.secrets import without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host/x.parquet", "https://***@host/x.parquet"),
        ("ftp://user:p@ss@host/x", "ftp://***@host/x"),
        ("https://host/x?token=T", "https://host/x?token=***"),
        ("no file at 'https://host/x?a=1&token=T&b=2'; check", "no file at 'https://host/x?a=1&token=***&b=2'; check"),
        ("https://host/x?Signature=T: not found", "https://host/x?Signature=***: not found"),
        ("https://host/x?X-Amz-Signature=T&X-Amz-Date=T", "https://host/x?X-Amz-Signature=***&X-Amz-Date=***"),
        ("https://host/x?AWSAccessKeyId=T, row group 1", "https://host/x?AWSAccessKeyId=***, row group 1"),
        ("s3://bucket/x?access_key=T&key=T", "s3://bucket/x?access_key=***&key=***"),
        (
            "https://host/x?sv=1&sig=T%3D&credential=T&password=T",
            "https://host/x?sv=1&sig=***&credential=***&password=***",
        ),
        ("ftp://user:p/a?s#s@host/x", "ftp://***@host/x"),
        ("zip://a::ftp://user:p/2@host/x and ftp://b:c@host", "zip://a::ftp://***@host/x and ftp://***@host"),
        ("https://host:8080/a@b/x", "https://host:8080/a@b/x"),
        ("https://host/x?pwd=T&jwt=T&pass=T", "https://host/x?pwd=***&jwt=***&pass=***"),
        ("https://host/x?passwd=T&auth=T&db_pass=T", "https://host/x?passwd=***&auth=***&db_pass=***"),
        ("https://host/x?sessionid=T&Authorization=T", "https://host/x?sessionid=***&Authorization=***"),
        ("https://host/x#access_token=T", "https://host/x#access_token=***"),
        ("https://host/x?h=0aB9cD8eF7gH6iJ5kL4mN3oP2", "https://host/x?h=***"),
        ("https://host/x?v=eyJhbGciOiJI.eyJzdWIi.SflK, row 1", "https://host/x?v=***, row 1"),
        ("https://host/x?author=me&design=2&passenger=3", "https://host/x?author=me&design=2&passenger=3"),
        ("https://host/x?from=2026-10-01T00:00:00&to=2026-11", "https://host/x?from=2026-10-01T00:00:00&to=2026-11"),
        ("https://host/x?mail=me@host", "https://host/x?mail=me@host"),
        ("s3://bucket/key=1/design=2/x.parquet", "s3://bucket/key=1/design=2/x.parquet"),
        ("data.train is ['s3://bucket/day_?.parquet']", "data.train is ['s3://bucket/day_?.parquet']"),
    ],
)
def test_secrets_are_hidden_and_nothing_else(text, shown):
    assert without_secrets(text) == shown


@pytest.fixture
def address(tmp_path):
    """An HTTP server without files, as HOST:PORT."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=tmp_path))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("ranks", [1, 2])
def test_data_that_is_not_there(address, tmp_path, ranks):
    url = f"http://user:PASSWORD@{address}/x.parquet?token=TOKEN"
    file = write_config(tmp_path / "config.toml", config(tmp_path, data__train=[url]))
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=ranks)
    assert f"data.train: no Parquet file at 'http://***@{address}/x.parquet?token=***'" in done.stderr
    for secret in ("PASSWORD", "TOKEN"):
        assert secret not in done.stdout + done.stderr


def test_only_the_configuration_of_a_run_has_them_and_only_its_owner_reads_it(address, tmp_path):
    write_rows(tmp_path / "rows", [128], row_group_size=128)
    url = f"simplecache::http://user:PASSWORD@{address}/rows/part-00.parquet?pwd=TOKEN"
    file = write_config(tmp_path / "config.toml", config(tmp_path, data__train=[url], train__steps=2))
    done = run_trainer("train", file, "--out", tmp_path / "out", "--data.validation", url)
    assert done.returncode == 0, done.stderr
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    found = {path for path in files if any(word in path.read_bytes() for word in (b"PASSWORD", b"TOKEN"))}
    assert found == {path for path in files if path.name == "config.toml"}
    assert len(found) == 2
    assert {path.stat().st_mode & 0o777 for path in found} == {0o600}
    for secret in ("PASSWORD", "TOKEN"):
        assert secret not in done.stdout + done.stderr
