"""A URL that cannot be used comes with what can be done about it."""

import errno
import os
import re
import sys

import pytest
from ports import free_port

from trainer.core.errors import InputError
from trainer.core.storage import named, open_storage


def read(url: str) -> None:
    with named("--out", url):
        fs, path = open_storage(url)
        fs.cat_file(path)


def refused(url: str) -> str:
    with pytest.raises(InputError) as raised:
        read(url)
    return str(raised.value)


@pytest.mark.parametrize(
    ("url", "reason", "advice"),
    [
        ("foo://x", "Protocol not known: foo", "write a local path, or a URL such as s3://BUCKET/PATH"),
        ("simplecache::foo://x", "Protocol not known: foo", "write a local path"),
        ("gs://bucket/x", "gcsfs", "pip install 'torchx-recsys[gcs]'"),
        ("abfs://container/x", "adlfs", "pip install 'torchx-recsys[azure]'"),
        ("oss://bucket/x", "ossfs cannot be used", "write s3:// in place of oss://"),
        ("sftp://host/x", "paramiko", "install that package"),
        ("/nowhere/x", "No such file or directory", "name a path that exists, or one that can be made"),
        ("/etc/hostname/x", "Not a directory", "name a path without a file where a directory is needed"),
    ],
)
def test_what_to_do(monkeypatch, url, reason, advice):
    for package in ("gcsfs", "adlfs", "paramiko"):  # not installed here, wherever this runs
        monkeypatch.setitem(sys.modules, package, None)
    message = refused(url)
    assert re.fullmatch(
        rf"--out is '{re.escape(url)}', which cannot be used: .*{reason}.*; {re.escape(advice)}.*", message
    )


def test_a_server_that_is_away():
    assert refused(f"ftp://127.0.0.1:{free_port()}/x").endswith("; check the URL, the network and the credentials")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "grant this user access to it, or name a path that it has access to"),
        (errno.EROFS, "grant this user access to it, or name a path that it has access to"),
        (errno.ENOSPC, "free some space, or name a path on another disk"),
        (errno.EIO, "repair it, or name a path on another disk"),
    ],
)
def test_what_to_do_about_a_disk(number, advice):
    with (
        pytest.raises(InputError, match=re.escape(f"{os.strerror(number)}: '/disk/x'; {advice}")),
        named("--out", "/disk"),
    ):
        raise OSError(number, os.strerror(number), "/disk/x")
