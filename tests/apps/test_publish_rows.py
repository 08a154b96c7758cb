"""Rows of exports in a real Redis: published as versions, read by a model that answers as the export does."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from command import run_trainer
from exported import parity_of
from row_store import (
    fields_in,
    first_export,
    needs_redis,
    next_export,
    redis_server,
    rows_in,
    rows_of,
    width_of,
    write_manifest,
)
from store_reader import as_text, guide_reader, module_of

from torchx_recsys import StoredModel, load
from trainer.__main__ import main as trainer
from trainer.core.errors import StorageError

pytestmark = needs_redis
VERSIONS = 5


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Directories of exports, the first of a trained model."""
    folders = [first_export(tmp_path_factory.mktemp("exports"))]
    for number in range(1, VERSIONS):
        folders.append(next_export(folders[-1], 10 * number, number))
    return folders


@pytest.fixture(scope="module")
def server():
    with redis_server() as store:
        yield store


@pytest.fixture
def store(server):
    with server.client() as client:
        client.flushall()
        server.at = client
        yield server


def publish(export, store, *flags):
    return trainer(["publish", "--export", str(export), "--to", getattr(store, "url", store), *map(str, flags)])


def assert_answers(model, export):
    columns = parity_of(export)["columns"]
    found, expected = model(columns), load(export)(columns)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_store_has_the_rows_and_the_model_answers_as_the_export_bit_for_bit(exports, store, capfd):
    assert publish(exports[0], store) == 0
    output = capfd.readouterr().out
    assert "version 1 of 'model' is step 4: all rows, as it is the first" in output
    assert rows_in(store.at, 1) == rows_of(exports[0])
    assert_answers(StoredModel(store.url), exports[0])
    command = output.split("Next:  ")[1]
    assert "StoredModel" in command
    assert publish(exports[0], store) == 0
    assert "step-4 is version 1 of 'model' in" in capfd.readouterr().out


def test_only_rows_that_differ_are_written(exports, store, capfd):
    assert publish(exports[0], store) == 0
    assert publish(exports[1], store) == 0
    before, after = rows_of(exports[0]), rows_of(exports[1])
    differ = {row for row in after if before[row] != after[row]}
    assert 0.1 * len(after) < len(differ) < 0.3 * len(after)
    assert rows_in(store.at, 2) == after
    assert rows_in(store.at, 1) == before
    assert fields_in(store.at) == len(after) + len(differ)
    assert json.loads(store.at.get("model:about:2"))["rows_written"] == len(differ)
    assert "version 2 of 'model' is step 10: the rows that differ from step-4" in capfd.readouterr().out


def test_without_the_export_before_rows_are_compared_with_the_store(exports, store, tmp_path, capfd):
    assert publish(exports[0], store) == 0
    folder = tmp_path / exports[1].name
    shutil.copytree(exports[1], folder)
    file = folder / "tables/s0-00000-of-00003.bin"
    file.write_bytes(bytes(64) + file.read_bytes()[64:])
    write_manifest(folder, "with a row of zeros")
    store.at.delete("model:row:s0:0")
    assert publish(folder, store) == 0
    assert "those in the store, as step-4 is not beside step-10" in capfd.readouterr().out
    old, new = rows_of(exports[0]), rows_of(folder)
    assert rows_in(store.at, 2) == new
    assert fields_in(store.at) - len(new) == sum(old[row] != value for row, value in new.items()) - 1


def test_a_damaged_export_before_is_reported_and_its_tables_written_whole(exports, store, tmp_path, capfd):
    for export in exports[:2]:
        shutil.copytree(export, tmp_path / export.name)
    assert publish(tmp_path / exports[0].name, store) == 0
    # A row of the version before that became, by accident, the row of this one.
    file, other = (tmp_path / one.name / "tables/s3-00000-of-00003.bin" for one in exports[:2])
    file.write_bytes(other.read_bytes())
    assert publish(tmp_path / exports[1].name, store) == 0
    assert "all rows of table 's3' are written: of the version before, tables/s3-00000-of-0" in capfd.readouterr().out
    assert rows_in(store.at, 2) == rows_of(exports[1])


def test_a_table_that_grows_shrinks_changes_or_is_gone(exports, store, tmp_path):
    """Rows that no version has any more leave the store, too."""
    changed = tmp_path / "step-11"
    shutil.copytree(exports[1], changed)
    index = json.loads((changed / "tables.json").read_text())["tables"]
    for table, rows in {"s0": 40, "s1": 300}.items():
        content = b"".join((changed / file["name"]).read_bytes() for file in index[table]["files"])
        size = len(content) // index[table]["rows"]
        for file in index[table]["files"]:
            (changed / file["name"]).unlink()
        name = f"tables/{table}-00000-of-00001.bin"
        (changed / name).write_bytes((content * 4)[: rows * size])
        index[table] |= {"rows": rows, "files": [{"name": name, "first_row": 0, "rows": rows}]}
    index["s2"] |= {"columns": index["s2"]["columns"] // 2}
    for file in index["s2"]["files"]:
        content = (changed / file["name"]).read_bytes()
        (changed / file["name"]).write_bytes(content[: len(content) // 2])
    del index["s3"]
    (changed / "tables.json").write_text(json.dumps({"tables": index}))
    write_manifest(changed, "changed")
    assert publish(exports[1], store) == 0
    assert publish(changed, store, "--keep", 2) == 0
    assert rows_in(store.at, 1) == rows_of(exports[1])
    assert rows_in(store.at, 2) == rows_of(changed)
    assert publish(exports[2], store, "--keep", 1) == 0
    assert rows_in(store.at, 3) == rows_of(exports[2])
    assert publish(changed, store, "--keep", 1) == 0
    assert rows_in(store.at, 4) == rows_of(changed)
    assert fields_in(store.at) == len(rows_of(changed))


def test_the_reader_of_the_guide_needs_plain_commands_alone(exports, store, tmp_path):
    reader = module_of(guide_reader(tmp_path))
    for version, export in enumerate(exports[:3], 1):
        assert publish(export, store) == 0
        rows = rows_of(export)
        assert reader.read_rows(store.at, "model", [*rows]) == (version, [*rows.values()])
    table = reader.tables(store.at, "model", 3)["s1"]
    assert table == {"rows": 101, "columns": 16, "dtype": "float32", "features": ["s1"]}


def test_old_versions_expire(exports, store):
    for export in exports:
        assert publish(export, store, "--keep", 2) == 0
    newest = len(exports)
    assert [int(one) for one in store.at.lrange("model:versions", 0, -1)] == [newest - 1, newest]
    assert rows_in(store.at, newest - 1) == rows_of(exports[-2])
    assert rows_in(store.at, newest) == rows_of(exports[-1])
    kept, newer = rows_of(exports[-2]), rows_of(exports[-1])
    assert fields_in(store.at) == len(kept) + sum(kept[row] != newer[row] for row in kept)
    left = {key.decode() for key in store.at.scan_iter("model:*") if b":row:" not in key}
    of_versions = {f"model:{kind}:{one}" for kind in ("about", "tables", "files") for one in (newest - 1, newest)}
    assert left == of_versions | {"model:version", "model:versions", "model:last", f"model:changed:{newest}"}
    assert publish(exports[-1], store, "--keep", 1) == 0
    assert fields_in(store.at) == len(newer)


def test_a_model_takes_over_a_version_that_is_published(exports, store):
    assert publish(exports[0], store) == 0
    model = StoredModel(store.url)
    assert publish(exports[1], store) == 0
    assert model.version == 1
    assert_answers(model, exports[0])
    wait_for(model, exports[1], 2)
    assert_answers(model, exports[1])
    assert model.signature["step"] == 10
    assert publish(exports[0], store) == 0  # as after a rollback
    wait_for(model, exports[0], 3)
    assert_answers(model, exports[0])


@pytest.mark.more("test_a_model_takes_over_a_version_that_is_published does so in one thread")
def test_threads_get_whole_answers_while_versions_change(exports, store):
    assert publish(exports[0], store) == 0
    model, columns, done = StoredModel(store.url), parity_of(exports[0])["columns"], threading.Event()
    expected = [as_text(load(export)(columns)) for export in exports]

    def ask():
        found = set()
        while not done.is_set():
            found.add(as_text(model(columns)))
        return found

    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(ask) for _ in range(3)]
        try:
            for export in exports[1:]:
                assert publish(export, store) == 0
            wait_for(model, exports[-1], len(exports))
        finally:
            done.set()
        seen = set().union(*(one.result() for one in answers))
    assert {expected[0], expected[-1]} <= seen <= {*expected}


def wait_for(model, export, version):
    columns = parity_of(export)["columns"]
    while model.version != version:
        model(columns)


def test_a_reader_that_slept_too_long_begins_again(exports, store, caplog):
    assert publish(exports[0], store) == 0
    model = StoredModel(store.url)
    for export in exports[1:]:
        assert publish(export, store, "--keep", 2) == 0
    assert_answers(model, exports[-1])
    assert model.version == len(exports)
    assert "version 1 of 'model' has expired; the newest is loaded" in caplog.text


def test_a_number_that_is_given_again_in_an_emptied_store_is_noticed(exports, store):
    assert publish(exports[0], store) == 0
    model = StoredModel(store.url)
    store.at.flushall()
    assert publish(exports[1], store) == 0
    assert_answers(model, exports[1])


def test_lost_rows_are_named_and_written_again_on_request(exports, store):
    assert publish(exports[0], store) == 0
    model = StoredModel(store.url)
    for key in store.at.scan_iter("model:row:s4:*"):
        store.at.delete(key)
    with pytest.raises(StorageError, match=r"^row \d+ of table 's4' is missing in the store, in version 1; publish "):
        model(parity_of(exports[0])["columns"])
    assert publish(exports[0], store, "--all-rows", True) == 0
    assert_answers(StoredModel(store.url), exports[0])


def test_two_models_in_one_store(exports, store):
    assert publish(exports[0], store, "--prefix", "a:b") == 0
    assert publish(exports[1], store, "--prefix", "c") == 0
    assert_answers(StoredModel(store.url, prefix="a:b"), exports[0])
    assert_answers(StoredModel(store.url, prefix="c"), exports[1])
    assert not [*store.at.scan_iter("model:*")]


@pytest.mark.more("trains once more; rows of float32 are published above")
def test_rows_of_float16_of_the_export_that_current_json_names(store, tmp_path):
    export = first_export(tmp_path, model__table_precision="fp16")
    (tmp_path / "exports/current.json").write_text(json.dumps({"directory": export.name}))
    done = run_trainer("publish", "--export", export.parent, "--to", store.url)
    assert done.returncode == 0, done.stderr
    assert {width_of(export, file) for file in export.glob("tables/*")} == {32}
    assert rows_in(store.at, 1) == rows_of(export)
    assert_answers(StoredModel(store.url), export)
