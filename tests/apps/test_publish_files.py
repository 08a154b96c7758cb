"""Rows of exports as files of Parquet, and wrong inputs of `publish`: one line each."""

import json
import shutil
import socket
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from exported import parity_of
from object_store import object_store
from row_store import first_export, needs_redis, next_export, redis_server, rows_in, rows_of

from torchx_recsys import StoredModel, load
from trainer.__main__ import main as trainer
from trainer.core.errors import InputError, StorageError


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Directories of three exports."""
    folders = [first_export(tmp_path_factory.mktemp("exports"))]
    folders += [next_export(folders[0], 10, 1)]
    return [*folders, next_export(folders[1], 20, 2)]


def publish(export, to, *flags):
    return trainer(["publish", "--export", str(export), "--to", str(to), *map(str, flags)])


def read_version(folder):
    """Returns the rows of a version, from its files and those of the versions before."""
    about = json.loads((folder / "about.json").read_text())
    found = {} if about["after"] is None else read_version(folder.parent / f"version-{about['after']}")
    for table, entry in about["tables"].items():
        content = pq.read_table(folder / entry["file"])
        assert content.schema.types == [pa.int64(), pa.list_(pa.float32())]
        assert len(content) == entry["written"]
        for row, embedding in zip(*(content[name].to_pylist() for name in ("row", "embedding")), strict=True):
            assert len(embedding) == entry["columns"]
            found[table, row] = np.asarray(embedding, np.float32).tobytes()
    return found


def test_files_have_the_rows_that_differ_and_nothing_is_replaced(exports, tmp_path, capfd):
    for number, export in enumerate(exports, 1):
        assert publish(export, tmp_path / "rows") == 0
        assert json.loads((tmp_path / "rows/current.json").read_text()) == {"directory": f"version-{number}"}
        assert read_version(tmp_path / f"rows/version-{number}") == rows_of(export)
    output = capfd.readouterr().out
    assert "version-1 is step 4: all rows, as it is the first" in output
    assert "version-3 is step 20: the rows that differ from step-10, version-2" in output
    abouts = [json.loads((tmp_path / f"rows/version-{number}/about.json").read_text()) for number in (1, 2, 3)]
    assert [one["after"] for one in abouts] == [None, 1, 2]
    rows = [rows_of(export) for export in exports]
    assert abouts[2]["rows_written"] == sum(rows[1][row] != value for row, value in rows[2].items())
    there = {file: file.read_bytes() for file in (tmp_path / "rows").rglob("*.parquet")}
    assert publish(exports[2], tmp_path / "rows") == 0
    assert "step-20 is version-3 in" in capfd.readouterr().out
    assert publish(exports[2], tmp_path / "rows", "--all-rows", True) == 0
    assert read_version(tmp_path / "rows/version-4") == rows[2]
    assert json.loads((tmp_path / "rows/version-4/about.json").read_text())["after"] is None
    assert all(file.read_bytes() == content for file, content in there.items())


def test_files_of_a_killed_publisher_are_left_alone(exports, tmp_path):
    (tmp_path / "rows/version-7").mkdir(parents=True)
    (tmp_path / "rows/version-7/s0.parquet").write_text("half")
    assert publish(exports[0], tmp_path / "rows") == 0
    assert read_version(tmp_path / "rows/version-8") == rows_of(exports[0])
    assert (tmp_path / "rows/version-7/s0.parquet").read_text() == "half"


@pytest.mark.more("the same files on a disk are above")
def test_from_and_to_an_object_store(exports, tmp_path, monkeypatch):
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.fs.mkdir("bucket")
        store.fs.put(str(exports[0].parent), "bucket/exports", recursive=True)
        for export in (exports[1], exports[2]):
            assert publish(f"s3://bucket/exports/{export.name}", "s3://bucket/rows") == 0
        assert publish("s3://bucket/exports", "s3://bucket/rows", "--all-rows", True) == 0
        store.fs.get("bucket/rows", str(tmp_path / "rows"), recursive=True)
    for number, export in {1: exports[1], 2: exports[2], 3: exports[2]}.items():
        assert read_version(tmp_path / f"rows/version-{number}") == rows_of(export)
    assert json.loads((tmp_path / "rows/version-2/about.json").read_text())["after"] == 1


def test_rows_that_are_looked_up_by_ones_own_function(exports):
    """As for a store of another kind."""
    import torch

    rows, asked = rows_of(exports[0]), []
    features = {
        one: table
        for table, entry in json.loads((exports[0] / "tables.json").read_text())["tables"].items()
        for one in entry["features"]
    }

    def look_up(wanted):
        asked.append({name: len(one) for name, one in wanted.items()})
        return {
            name: torch.frombuffer(
                bytearray().join(rows[features[name], row] for row in one.tolist()), dtype=torch.float32
            ).view(len(one), -1)
            for name, one in wanted.items()
        }

    columns = parity_of(exports[0])["columns"]
    found, expected = load(exports[0], embeddings=look_up)(columns), load(exports[0])(columns)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert asked == [dict.fromkeys(features, 64)]


def damaged(export, tmp_path, name):
    """Returns a copy of an export in which a byte of a file is another."""
    folder = tmp_path / export.name
    shutil.copytree(export, folder)
    content = bytearray((folder / name).read_bytes())
    content[-5] ^= 1
    (folder / name).write_bytes(content)
    return folder


def of_another_form(tmp_path):
    """Returns an export whose tables are in the program."""
    folder = tmp_path / "step-4"
    folder.mkdir()
    (folder / "signature.json").write_text('{"step": 4}')
    import zlib

    entry = {"bytes": 11, "crc32": zlib.crc32(b'{"step": 4}')}
    manifest = {"fingerprint": "a", "files": {"signature.json": entry, "model.pt2": entry}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


WRONG = {
    "no export": (
        lambda e, t: ["--export", t, "--to", t / "rows"],
        ": it is no whole export: manifest.json, which is written last, is missing; make one by",
    ),
    "no directory": (lambda e, t: ["--export", t / "a", "--to", t / "rows"], "it is no whole export: manifest.json"),
    "tables in the program": (
        lambda e, t: ["--export", of_another_form(t), "--to", "redis://localhost"],
        "has its tables in the program; export it with --shard-bytes",
    ),
    "a damaged signature": (
        lambda e, t: ["--export", damaged(e, t, "signature.json"), "--to", t / "rows"],
        "signature.json is damaged; copy the directory again",
    ),
    "a damaged table": (
        lambda e, t: ["--export", damaged(e, t, "tables/s0-00000-of-00003.bin"), "--to", t / "rows"],
        "--export: step-4/tables/s0-00000-of-00003.bin is damaged; copy the directory again",
    ),
    "a prefix of other characters": (
        lambda e, t: ["--export", e, "--to", "redis://localhost", "--prefix", "a b"],
        "--prefix is 'a b'; it takes letters, digits",
    ),
    "a prefix of files": (lambda e, t: ["--export", e, "--to", t, "--prefix", "a"], "--prefix is a, but --to is"),
    "versions of files": (lambda e, t: ["--export", e, "--to", t, "--keep", "2"], "which is no redis://; leave it"),
    "no versions": (lambda e, t: ["--export", e, "--to", "redis://h", "--keep", "0"], "--keep"),
    "no host": (lambda e, t: ["--export", e, "--to", "redis://"], "no address of a Redis; write redis://HOST:PORT"),
    "no port": (lambda e, t: ["--export", e, "--to", "redis://h:x"], "write redis://HOST:PORT/DATABASE"),
    "no number of a database": (lambda e, t: ["--export", e, "--to", "redis://h/a"], "whose path is no number of a"),
    "a directory of something else": (
        lambda e, t: [(t / "current.json").write_text('{"a": 1}'), "--export", e, "--to", t][1:],
        "whose current.json is of something else; name another directory",
    ),
    "another kind of storage": (lambda e, t: ["--export", e, "--to", "rediss3://h/a"], "cannot be used"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_input_is_one_line(name, exports, tmp_path, capfd):
    words, line = WRONG[name]
    assert trainer(["publish", *map(str, words(exports[0], tmp_path))]) == 2
    assert_one_line(capfd, line)


def assert_one_line(capfd, *parts):
    error = capfd.readouterr().err
    assert error.count("\n") == 1, error
    assert error.startswith("error: ")
    assert all(part in error for part in parts), error
    assert "the-secret" not in error


@needs_redis
class TestStores:
    def test_a_password(self, exports, capfd, monkeypatch):
        with redis_server(password="the-secret") as store:
            assert publish(exports[0], store.url) == 2
            assert_one_line(capfd, "which refuses the user or the password", "REDIS_PASSWORD")
            assert publish(exports[0], store.url.replace("//", "//:the-secret-no@")) == 2
            assert_one_line(capfd, "--to is 'redis://***@127.0.0.1:", "which refuses the user or the password")
            url = store.url.replace("//", "//:the-secret@")
            assert publish(exports[0], url) == 0
            assert "the-secret" not in capfd.readouterr().out
            monkeypatch.setenv("REDIS_PASSWORD", "the-secret")
            assert publish(exports[1], store.url) == 0
            assert StoredModel(store.url).version == 2
            store.client(password="the-secret").acl_setuser(
                "reader", enabled=True, passwords=["+the-secret"], categories=["+@read"], keys=["model:*"]
            )
            capfd.readouterr()
            monkeypatch.setenv("REDIS_USERNAME", "reader")
            assert publish(exports[2], store.url) == 2
            assert_one_line(capfd, "which does not permit this user to do that")

    def test_memory_that_is_full_and_a_policy_that_drops_rows(self, exports, capfd):
        with redis_server("--maxmemory", "1200kb") as store, store.client() as client:
            assert publish(exports[0], store.url) == 2
            assert_one_line(capfd, "whose memory is full; raise its maxmemory, or keep fewer versions")
            assert client.keys("model:row:*") == []
            assert client.get("model:version") is None
            client.config_set("maxmemory", "50mb")
            assert publish(exports[0], store.url) == 0
            assert rows_in(client, 2) == rows_of(exports[0])
            client.config_set("maxmemory-policy", "allkeys-lru")
            assert publish(exports[1], store.url) == 2
            assert_one_line(capfd, "set its maxmemory-policy, now allkeys-lru, to noeviction")

    def test_a_replica(self, exports, capfd):
        with redis_server() as store, redis_server("--replicaof", "127.0.0.1", str(store.port)) as replica:
            assert publish(exports[0], replica.url) == 2
            assert_one_line(capfd, f"takes no writes; name its primary, 127.0.0.1:{store.port}")
            assert publish(exports[0], store.url) == 0
            replica_client = replica.client()
            while replica_client.get("model:version") is None:
                pass
            assert StoredModel(replica.url).version == 1

    def test_a_part_of_a_cluster(self, exports, capfd):
        with redis_server("--cluster-enabled", "yes") as store:
            assert publish(exports[0], store.url) == 2
            assert_one_line(capfd, "which is a part of a cluster; name a Redis without cluster mode")

    def test_databases_and_parameters_and_keys_of_something_else(self, exports, capfd):
        with redis_server() as store, store.client() as client:
            assert publish(exports[0], store.url[:-1] + "99") == 2
            assert_one_line(capfd, "which has no such database")
            assert publish(exports[0], store.url + "?color=red") == 2
            assert_one_line(capfd, "color", "leave them out")
            for text in (3, "three"):
                client.set("model:version", text)
                assert publish(exports[0], store.url) == 2
                assert_one_line(capfd, "damaged or of something else; name another --prefix than 'model'")
            with pytest.raises(InputError, match="which has no model 'other'; publish one by"):
                StoredModel(store.url, prefix="other")

    def test_nobody_and_somebody_else_at_the_port(self, exports, capfd):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            threading.Thread(target=hang_up, args=(server,), daemon=True).start()
            assert publish(exports[0], f"redis://127.0.0.1:{port}") == 2
            assert_one_line(capfd, "where something else than a Redis answers; name a Redis")
            server.shutdown(socket.SHUT_RDWR)
        assert publish(exports[0], f"redis://127.0.0.1:{port}") == 1
        assert_one_line(capfd, "which does not answer: ", "check the address, the network and whether it runs")
        with pytest.raises(StorageError, match="which does not answer"):
            StoredModel(f"redis://127.0.0.1:{port}")


def hang_up(server):
    """Answers as a server of HTTP would."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
