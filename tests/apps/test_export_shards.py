"""Exports with tables in shards: the answers are those of tables in the program, bit for bit."""

import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from endpoint import Served
from exported import ask, export, first_rows, parity_of, step_directory
from jobs import config, launch, saved_tensors, write_rows
from object_store import object_store
from raw_columns import columns_config, write_columns
from ready_made import NAMES, ready_made, sampled, write_ratings
from sequences import sequence_config, write_histories

from torchx_recsys.apps.export.load import load
from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.__main__ import main as trainer
from trainer.checkpoint.store import find_damage
from trainer.core.storage import open_storage

pytestmark = pytest.mark.more("test_export_own_rule.py exports in every form")

STEPS = 6
RATES = {"optimizer__sparse__learning_rate": 0.5, "optimizer__dense__learning_rate": 0.05}
SHARD_BYTES = 1000
ROW_BYTES = 32  # of a table of "half"
PATHS = rb"/(tmp|work|home|root|usr|site-packages)/"

MATRIX = "name", lambda whole: sampled(NAMES, 1, whole)


NAMED = ("s0", "s0.values", "of/a path %", "цена", "s4", "s5")


def write_named(folder):
    """Writes rows whose columns have names that files cannot have, or that lists give their inputs."""
    (file,) = write_rows(folder, [130]).iterdir()
    table = pq.read_table(file)
    pq.write_table(table.rename_columns({f"s{place}": name for place, name in enumerate(NAMED)}), file)
    return folder


@pytest.fixture(scope="module")
def runs(matrix, tmp_path_factory):
    """Runs of built-in models, one with every rule and averages, one's own, float16 tables, and names of columns."""
    folder = tmp_path_factory.mktemp("runs")
    ratings, plain = write_ratings(folder), write_rows(folder / "plain", [130])
    raw, histories = write_columns(folder / "raw"), write_histories(folder / "histories", 130)
    vocabulary((str(raw),), ("listed",), str(folder / "vocabulary"), min_count=8, unseen_rows=3)
    here = {"train__steps": STEPS, **RATES}
    trees = {name: ready_made(name, ratings, **here) for name in matrix}
    trees["rules"] = columns_config(
        raw,
        folder / "vocabulary/listed.parquet",
        optimizer__ema={"decay": 0.8, "tables": True},
        planner__sharding_types=["column_wise"],
        planner__min_columns=4,
        train__steps=STEPS,
    )
    trees["own"] = sequence_config(histories, "custom:SumOfSequences", data__validation=[str(histories)], **here)
    del trees["own"]["model"]["target"], trees["own"]["model"]["history"], trees["own"]["model"]["over_layers"]
    rows = {"data__validation": [str(plain)], "planner__sharding_types": ["row_wise"], **here}
    trees["half"] = config(plain, model__table_precision="fp16", **rows)
    trees["named"] = config(write_named(folder / "named rows"), **here)
    trees["named"]["data"] |= {
        "validation": trees["named"]["data"]["train"],
        "sparse": {one: {"rows": 110} for one in NAMED},
    }
    launch([{"config": tree, "out": str(folder / name)} for name, tree in trees.items()], 2, folder)
    return folder


@pytest.fixture(scope="module")
def whole(runs):
    """Directories with tables in the program, by run."""
    names = [file.parent.name for file in runs.glob("*/config.toml")]
    return {name: export(runs, name, runs / "whole" / name) for name in names}


@pytest.fixture(scope="module")
def shards(runs, whole):
    """Directories with tables in shards, by run."""
    return {name: export(runs, name, runs / "shards" / name, "--shard-bytes", SHARD_BYTES) for name in whole}


@pytest.fixture(scope="module")
def answers(whole, shards):
    """The outputs of both for the parity rows, by run."""
    columns = {name: parity_of(directory)["columns"] for name, directory in whole.items()}
    found = ask(*((kind[name], columns[name]) for name in whole for kind in (whole, shards)))
    return dict(zip(whole, zip(found[::2], found[1::2], strict=True), strict=True))


def assert_same(answers, directory, name):
    of_program, of_shards = answers[name]
    assert of_shards == of_program
    expected = parity_of(directory)["answers"]
    assert of_shards.keys() == expected.keys()
    for output, values in expected.items():
        np.testing.assert_allclose(of_shards[output], values, rtol=0, atol=1e-6)
        assert np.ptp(np.asarray(values), axis=0).max() > 1e-5


def test_built_in_models_answer_as_with_tables_in_the_program(shards, answers, name):
    assert_same(answers, shards[name], name)


@pytest.mark.parametrize("run", ["rules", "own", "half", "named"])
def test_rules_and_models_of_ones_own_too(shards, answers, run):
    assert_same(answers, shards[run], run)


def table_files(directory, table):
    """The files of a table with the number of rows in each."""
    entry = json.loads((directory / "tables.json").read_text())["tables"][table]
    return {directory / file["name"]: file["rows"] for file in entry["files"]}


@pytest.mark.sample(2)
@pytest.mark.parametrize("rows", [1, 7, 100, 10**6])
def test_shards_of_any_size(runs, whole, tmp_path, rows):
    """With ids at both ends of shards and of tables, those of 1 row included."""
    directory = export(runs, "half", tmp_path, "--shard-bytes", ROW_BYTES * rows + ROW_BYTES - 1)
    columns = first_rows(parity_of(directory)["columns"], slice(8))
    for table in range(6):
        size = 100 + table
        files = table_files(directory, f"s{table}")
        assert [*files.values()] == [rows] * (size // rows) + [size % rows] * (size % rows > 0)
        assert [file.stat().st_size for file in files] == [ROW_BYTES * count for count in files.values()]
        columns[f"s{table}"] = [0, min(6, size - 1), 7, 69, 70, size - 2, size - 1, None]
    of_program, of_shards = ask((whole["half"], columns), (directory, columns))
    assert of_shards == of_program


def test_files_are_the_rows_of_the_checkpoint(runs, shards):
    saved = saved_tensors(runs / "half", STEPS)
    for table in range(6):
        content = b"".join(file.read_bytes() for file in table_files(shards["half"], f"s{table}"))
        (weight,) = (value for name, value in saved.items() if name.endswith(f"embedding_bags.s{table}.weight"))
        assert content == weight.numpy().tobytes()


def test_tables_that_an_interrupted_export_left_are_removed(runs, tmp_path):
    left, own = (tmp_path / f"step-{STEPS}" / name for name in ("tables/s0-00000-of-00009.bin", "notes.txt"))
    left.parent.mkdir(parents=True)
    for file in (left, own):
        file.write_text("half")
    directory = export(runs, "half", tmp_path, "--shard-bytes", "1000")
    there = {file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()}
    manifest = json.loads((directory / "manifest.json").read_text())
    assert there == {*manifest["files"], "manifest.json", "notes.txt"}


def test_tables_are_in_no_program(shards, whole):
    """Which hold what is left, and the rules: as much whatever the tables have."""
    for name, directory in shards.items():
        sizes = sum(file.stat().st_size for file in directory.glob("tables/*"))
        smaller = (whole[name] / "model.pt2").stat().st_size - (directory / "model.pt2").stat().st_size
        assert smaller > 0.8 * sizes
    assert "shards" not in json.loads((whole["half"] / "signature.json").read_text())
    assert json.loads((shards["half"] / "signature.json").read_text())["shards"] == "tables.json"


def test_the_manifest_has_every_file_and_none_tells_of_the_machine(shards):
    for directory in shards.values():
        files = [file for file in directory.rglob("*") if file.is_file()]
        entries = json.loads((directory / "manifest.json").read_text())["files"]
        assert {*entries, "manifest.json"} == {file.relative_to(directory).as_posix() for file in files}
        assert find_damage(*open_storage(str(directory)), entries) is None
        for file in files:
            assert not re.search(PATHS, file.read_bytes()), file


def test_one_sample_and_empty_lists(shards, whole):
    columns = parity_of(whole["rules"])["columns"]
    nothing = {name: [None] for name in columns}
    questions = [nothing, first_rows(columns, slice(1)), {name: [None, None] for name in columns}]
    found = ask(*((kind["rules"], one) for one in questions for kind in (whole, shards)))
    assert found[::2] == found[1::2]


def test_a_shard_that_is_missing_or_damaged_is_named(shards, tmp_path, capfd):
    shutil.copytree(shards["half"], tmp_path / "copy")
    file = next(iter(table_files(tmp_path / "copy", "s3")))
    content = bytearray(file.read_bytes())
    content[5] ^= 1
    file.write_bytes(content)
    assert trainer(["serve", "--directory", str(tmp_path / "copy")]) == 2
    line = capfd.readouterr().err
    assert line.startswith("error: --directory is")
    assert f"{file} is damaged or missing" in line
    assert line.count("\n") == 1
    for harm in (lambda: file.write_bytes(content[:-1]), file.unlink):
        harm()
        with pytest.raises(ValueError, match=r"^.*/s3-00000-of-00004.bin is damaged or missing; copy"):
            load(tmp_path / "copy")


def test_it_is_served(shards, tmp_path):
    parity = parity_of(shards["rules"])
    served = Served(shards["rules"], tmp_path)
    parts = [first_rows(parity["columns"], slice(start, start + 4)) for start in range(0, 64, 4)]
    for part, (status, content) in enumerate(served.ask(*({"columns": columns} for columns in parts))):
        assert status == 200, content
        for name, values in parity["answers"].items():
            np.testing.assert_allclose(content["outputs"][name], values[4 * part : 4 * part + 4], atol=1e-6)
    served.process.kill()


def test_from_and_to_an_object_store(runs, shards, tmp_path, monkeypatch):
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        store.fs.mkdir("bucket")
        store.fs.put(str(runs / "half"), "bucket/run", recursive=True)
        words = ["--out", "s3://bucket/run", "--to", "s3://bucket/to", "--shard-bytes", str(SHARD_BYTES)]
        assert trainer(["export", "s3://bucket/run/config.toml", *words]) == 0
        store.fs.get("bucket/to", str(tmp_path), recursive=True)
    for file in shards["half"].glob("tables/*"):
        assert (tmp_path / "to/step-6/tables" / file.name).read_bytes() == file.read_bytes()
    directory = step_directory(tmp_path / "to")
    expected = parity_of(directory)
    (found,) = ask((directory, expected["columns"]))
    for output, values in expected["answers"].items():
        np.testing.assert_allclose(found[output], values, rtol=0, atol=1e-6)


WRONG = {
    "nothing": (["0"], "--shard-bytes is 0"),
    "less than nothing": (["-5"], "--shard-bytes"),
    "a word": (["1GB"], "--shard-bytes is '1GB'"),
    "less than a row": (["31"], "--shard-bytes is 31, but a row of table 's0' has 32 bytes; set it to at least that"),
    "quantized": (["99", "--quantize", "int4"], "--shard-bytes is 99, and --quantize is int4; leave one of them out"),
    "compiled": (["99", "--compile", "True"], "--shard-bytes is 99, and --compile is True; leave one of them out"),
    "for another program": (["99", "--format", "onnx"], "--shard-bytes is 99, and --format is onnx; leave one of"),
}


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_wrong_input(runs, tmp_path, capfd, flags, words):
    command = ["export", str(runs / "half/config.toml"), "--out", str(runs / "half"), "--to", str(tmp_path / "to")]
    assert trainer([*command, "--shard-bytes", *flags]) == 2
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: ")
    assert words in line
    assert not (tmp_path / "to").exists()
