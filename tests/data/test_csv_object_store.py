"""CSV files and their cache on S3."""

import gzip

import pytest
from csv_files import csv_config, read_all
from object_store import object_store

from trainer.core.errors import StorageError

pytestmark = pytest.mark.more("test_object_store.py trains from S3")

TEXT = "x,id,label\n" + "".join(f"{n}.5,{n % 90},{n % 2}\n" for n in range(600))
CSV = {"cache": "s3://bucket/cache", "block_bytes": 1500}


@pytest.fixture(scope="module")
def store():
    with object_store() as store:
        store.fs.mkdir("bucket")
        store.fs.pipe({"bucket/plain/a.csv": TEXT.encode(), "bucket/packed/a.csv.gz": gzip.compress(TEXT.encode())})
        yield store


@pytest.fixture(autouse=True)
def environment(store, monkeypatch):
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_a_cache_on_s3_is_made_once(store, kind, tmp_path):
    (tmp_path / "a.csv").write_text(TEXT)
    expected = read_all(tmp_path / "a.csv", csv_config(tmp_path / "cache"))
    config = csv_config(tmp_path, csv=CSV)
    assert read_all(f"s3://bucket/{kind}", config).equals(expected)
    assert not [name for name in store.fs.find("bucket/cache") if "partial" in name]
    ends = [".index", ".blocks"][: 1 + (kind == "packed")]
    made = {name: store.fs.info(name)["LastModified"] for name in store.fs.find("bucket/cache")}
    assert all(any(name.endswith(end) for name in made) for end in ends)
    with store.faults({"fault": "403", "method": "PUT", "path": "cache"}) as faults:
        assert read_all(f"s3://bucket/{kind}", config).equals(expected)
        assert faults() == 0
    assert {name: store.fs.info(name)["LastModified"] for name in made} == made


def test_a_store_that_fails_is_no_wrong_input(store, tmp_path):
    config = csv_config(tmp_path)
    read_all("s3://bucket/plain", config)
    with (
        store.faults({"fault": "500", "method": "GET", "path": "a.csv"}),
        pytest.raises(
            StorageError, match=r"a\.csv, lines 2 to the last: cannot be read \(.*InternalError was asked for"
        ),
    ):
        read_all("s3://bucket/plain", config)
