"""Batch inference: every row once, in order, as float64 arithmetic and the evaluation say; bad input in one line."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer
from jobs import config, launch, write_rows
from predictions import OUTPUTS, STEPS, by_hand, columns_of_every_type, parts, read, train, write_data

from torchx_recsys.apps.predict.parts import PartFile
from trainer.__main__ import main as trainer

SMALL = ("--rows-per-part", "96", "--batch-size", "48")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    return train(data, tmp_path_factory.mktemp("trained"))


@pytest.fixture
def predict(data, run, tmp_path, capfd):
    """Predicts in this process, into a new directory, and returns the directory and what was printed."""

    def predict(*flags, source=data / "new", to=tmp_path / "parts", out=run, code=0):
        arguments = ["predict", out / "config.toml", "--out", out, "--source", source, "--to", to, *flags]
        assert trainer([str(word) for word in arguments]) == code
        said = capfd.readouterr()
        return to, said.err if code else said.out

    return predict


def test_outputs_are_those_of_float64_in_the_order_of_the_rows(data, run, predict, monkeypatch):
    monkeypatch.setattr("torchx_recsys.apps.predict.inference.INTERVAL_SECONDS", 0.0)
    monkeypatch.setattr("torchx_recsys.apps.predict.parts.ROW_GROUP_ROWS", 50)
    folder, said = predict(*SMALL)
    found, expected = read(folder), by_hand(data, run)
    given = pq.read_table(data / "new")
    assert found.select(given.column_names).equals(given)
    assert found.column_names == [*given.column_names, *OUTPUTS]
    assert found["row_id"].to_pylist() == list(range(640))
    for name in OUTPUTS:
        values = np.array(found[name].to_pylist())
        np.testing.assert_allclose(values, expected[name], rtol=1e-5, atol=1e-6, err_msg=name)
    assert found.schema.field("vectors_item").type == pa.list_(pa.float32(), 4)
    assert [part.name for part in parts(folder)][3] == "part-00003-of-00007.parquet"
    assert [pq.read_metadata(part).num_row_groups for part in parts(folder)] == [2, 2, 2, 2, 2, 2, 2]
    assert f"step {STEPS} of {run}: 640 rows in 7 parts, 0 of which are there" in said
    assert "48 of 640 rows (8%)  " in said
    assert "  ETA 00:0" in said
    assert "640 of 640 rows (100%)" in said
    assert said.splitlines()[-1].startswith("Next: ")


def test_the_loss_of_predictions_is_that_of_the_evaluation(data, run, predict):
    folder, _ = predict("--checkpoint", "best", "--outputs", "score_probability", source=data / "train")
    found = read(folder)
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    best = min(lines, key=lambda line: line["log_loss/score"])
    p, label, weight = (found[name].to_numpy().astype(float) for name in ("score_probability", "label", "weight"))
    loss = -(label * np.log(p) + (1 - label) * np.log(1 - p))
    assert (loss * weight).sum() / weight.sum() == pytest.approx(best["log_loss/score"], rel=1e-6)
    assert json.loads((folder / "manifest.json").read_text())["checkpoint"]["step"] == best["step"]


def test_columns_of_every_type_pass_through(data, run, predict, tmp_path, monkeypatch):
    monkeypatch.setattr("torchx_recsys.apps.predict.parts.ROW_GROUP_ROWS", 50)
    given = pq.read_table(data / "new")
    for name, column in zip((every := columns_of_every_type(640)).column_names, every.columns, strict=True):
        given = given.append_column(name, column)
    (tmp_path / "rich").mkdir()
    pq.write_table(given.slice(0, 250), tmp_path / "rich/a.parquet", row_group_size=40)
    pq.write_table(given.slice(0, 0), tmp_path / "rich/b.parquet")
    pq.write_table(given.slice(250), tmp_path / "rich/c.parquet")
    folder, _ = predict(*SMALL, source=tmp_path / "rich")
    found = read(folder)
    source = pa.concat_tables([pq.read_table(file) for file in sorted((tmp_path / "rich").iterdir())])
    assert found.select(source.column_names).combine_chunks().equals(source.combine_chunks())


def test_integers_close_together_are_packed_what_repeats_has_a_dictionary_and_all_values_stay():
    table = pa.table(
        {
            "close": pa.array([2**64 - 1, None, 2**64 - 3, 2**64 - 3, 2**64 - 2], pa.uint64()),
            "far": [1, 2**40, 3, None, 5],
            "far.and.again": [1, 2**40, 1, 2**40, 1],
            "empty": pa.array([None] * 5, pa.int64()),
            "dotted.name": pa.array([-128, 127, 0, 1, 1], pa.int8()),
            "list": [[1], None, [2, 3], [], [4]],
            "text": ["a", "b", "a", "c", "d"],
            "label": pa.array([0, 1, 0, 0, 1], pa.float32()),
            "number": pa.array([0.5, np.nan, -1, None, np.inf]),
            "half": pa.array([0.5, 0.25, -1, None, 2], pa.float16()),
        }
    )
    written = []
    part = PartFile(10, (), written.append)
    part.add(table)
    part.add(table)
    found = pq.ParquetFile(pa.BufferReader(written[0]))
    expected = pa.concat_tables([table, table])
    assert all(
        found.read()[name].to_pylist() == expected[name].to_pylist() for name in table.column_names if name != "number"
    )
    np.testing.assert_equal(found.read()["number"].to_pylist(), expected["number"].to_pylist())
    columns = [found.metadata.row_group(1).column(place) for place in range(found.metadata.num_columns)]
    packed = [column.path_in_schema for column in columns if "DELTA_BINARY_PACKED" in column.encodings]
    assert packed == ["close", "dotted.name"]
    plain = [column.path_in_schema for column in columns if "RLE_DICTIONARY" not in column.encodings]
    assert plain == ["close", "far", "dotted.name", "number"]


def test_only_named_columns_are_kept_or_none(predict, tmp_path):
    folder, _ = predict("--keep-columns", "row_id", "tags", "--outputs", "pair_probability", "score_value")
    assert read(folder).column_names == ["row_id", "tags", "pair_probability", "score_value"]
    folder, _ = predict("--keep-columns", "--outputs", "pair_probability", to=tmp_path / "bare")
    assert read(folder).column_names == ["pair_probability"]
    assert read(folder).num_rows == 640


def test_a_finished_job_makes_nothing_again_and_an_unfinished_one_goes_on_with_its_checkpoint(run, predict, tmp_path):
    folder, _ = predict(*SMALL, "--checkpoint", "4")
    whole = {part: (part.read_bytes(), part.stat().st_mtime_ns) for part in parts(folder)}
    _, said = predict(*SMALL, "--checkpoint", "4")
    assert "nothing is left to do" in said
    _, said = predict(*SMALL, code=2)
    assert "other checkpoint (" in said
    (folder / "manifest.json").unlink()
    lost, cut, *kept = parts_of = [*whole]
    lost.unlink()
    cut.write_bytes(whole[cut][0][:-100])  # as storage that moves files by copying them leaves it
    (folder / f"{lost.name}.partial").write_bytes(b"PAR1")
    _, said = predict(*SMALL)  # step 6 is the newest
    assert "step 4 of" in said
    assert "5 of which are there" in said
    assert parts(folder) == parts_of
    assert [part.read_bytes() for part in parts_of] == [content for content, _ in whole.values()]
    assert [part.stat().st_mtime_ns for part in kept] == [whole[part][1] for part in kept]


def test_other_storage(data, run, predict):
    predict(*SMALL, to="memory://predictions/a")
    import fsspec

    names = [path.rpartition("/")[2] for path in fsspec.filesystem("memory").find("/predictions/a")]
    assert names == ["job.json", "manifest.json", *(f"part-{n:05d}-of-00007.parquet" for n in range(7))]


def test_a_reader_of_ones_own(data, predict, tmp_path):
    (tmp_path / "arrow").mkdir()
    for file in (data / "new").iterdir():
        table = pq.read_table(file)
        with pa.ipc.new_file(tmp_path / f"arrow/{file.stem}.arrow", table.schema) as sink:
            sink.write_table(table, max_chunksize=50)
    plain, _ = predict(*SMALL)
    own, _ = predict(
        *SMALL, "--data.reader", "ipc_reader:IpcReader", source=tmp_path / "arrow", to=tmp_path / "from_arrow"
    )
    assert read(own).equals(read(plain))


def test_managed_ids_and_vocabularies_are_looked_up_as_in_an_evaluation(tmp_path, predict):
    plain = write_rows(tmp_path / "plain", [300])
    trainer(["vocabulary", "--source", str(plain), "--columns", "s1", "--out", str(tmp_path / "v"), "--max-rows", "30"])
    tree = config(plain, train__steps=5, data__test=[str(plain)])
    tree["data"]["sparse"]["s0"] = {"rows": 40, "ids": "managed"}
    tree["data"]["sparse"]["s1"] = {"rows": 30, "ids": "vocabulary", "vocabulary": str(tmp_path / "v/s1.parquet")}
    launch([{"config": tree, "out": str(tmp_path / "run")}], 1, tmp_path)
    folder, _ = predict(*SMALL, source=plain, out=tmp_path / "run")
    found = read(folder)
    (folder / "manifest.json").unlink()
    (folder / "part-00002-of-00004.parquet").unlink()
    flags = ("--data.sparse.s0.evict", "least_recent", "--data.sparse.s1.hotness", "2")  # which a resume may change
    _, said = predict(*SMALL, *flags, source=plain, out=tmp_path / "run")
    assert "3 of which are there" in said
    assert read(folder).equals(found)
    p, label = (found[name].to_numpy().astype(float) for name in ("label_probability", "label"))
    test = json.loads((tmp_path / "run/evaluations.jsonl").read_text().splitlines()[-1])
    loss = -(label * np.log(p) + (1 - label) * np.log(1 - p)).mean()
    assert test["split"] == "test"
    assert loss == pytest.approx(test["log_loss"], rel=1e-6)


WRONG = {
    "no file": (["--source", "nowhere.parquet"], "--source: no Parquet file at 'nowhere.parquet'"),
    "a step without a checkpoint": (["--checkpoint", "5"], "--checkpoint is 5, which is no committed checkpoint"),
    "another word": (["--checkpoint", "last"], "--checkpoint is 'last'; allowed: newest, best"),
    "no such output": (["--outputs", "score_probabilty"], "did you mean 'score_probability'?"),
    "no such column": (["--keep-columns", "row"], "--keep-columns has 'row', which"),
    "a column twice": (["--keep-columns", "s0", "s0"], "--keep-columns has 's0' twice"),
    "parts that batches do not divide": (["--rows-per-part", "5000"], "use 8192, or another --batch-size"),
    "no rows at once": (["--batch-size", "0"], "--batch-size is 0; it must be at least 1"),
    "a file in the place of the directory": (["--to", "{file}"], "--to is "),
    "no run": (["--out", "{empty}"], "which holds no committed checkpoint; train first"),
    "another model": (["--model.embedding-dim", "8"], "and this model of"),
    "a feature that is not there": (["--data.sparse.more.rows", "5"], "no column 'more'; the file has"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(case, data, run, tmp_path, capfd):
    flags, message = WRONG[case]
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    words = [flag.format(file=tmp_path / "file", empty=tmp_path / "empty") for flag in flags]
    arguments = [run / "config.toml", "--out", run, "--source", data / "new", "--to", tmp_path / "parts", *words]
    assert trainer(["predict", *map(str, arguments)]) == 2
    line = capfd.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert message in line
    assert not [*tmp_path.rglob("part-*")]
    assert case == "another model" or not (tmp_path / "parts").exists()  # a model is built once there is work for it


def test_data_that_cannot_be_used_is_one_line(data, predict, tmp_path):
    shutil.copytree(data / "new", tmp_path / "new")
    file = tmp_path / "new/part-02.parquet"
    table = pq.read_table(file)

    def said(table: pa.Table) -> str:
        pq.write_table(table, file)
        _, line = predict(*SMALL, source=tmp_path / "new", code=2)
        assert line.count("\n") == 1
        return line

    assert "column 'row_id' is in some files and not in others" in said(table.drop_columns("row_id"))
    other = table.set_column(table.column_names.index("row_id"), "row_id", table["row_id"].cast(pa.string()))
    assert f"column 'row_id' is of type string, but int64 in {sorted(file.parent.iterdir())[0]}; make" in said(other)
    ids = pa.array([100] * len(table), pa.int32())  # a row too far
    wrong = table.set_column(table.column_names.index("s0"), "s0", ids)
    assert "id 100 is outside [0, 100)" in said(wrong)
    assert not (tmp_path / "parts/manifest.json").exists()
    pq.write_table(table, file)
    assert "other files" in predict(*SMALL, source=tmp_path / "new", code=2)[1]


def test_another_job_in_the_same_directory_is_refused(data, predict, tmp_path):
    folder, _ = predict(*SMALL)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for flags, words in (
        (("--rows-per-part", "144", "--batch-size", "48"), "other rows_per_part (96, now 144)"),
        ((*SMALL, "--keep-columns", "s0"), "other kept_columns"),
        ((*SMALL, "--outputs", "score_value"), "other outputs"),
        ((*SMALL, "--data.dense.d0.mean", "1.0"), "other model, tasks or features"),
    ):
        assert words in predict(*flags, code=2)[1]
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "job.json").unlink()
    assert "which holds part-00000-of-00007.parquet but no job.json" in predict(*SMALL, code=2)[1]


@pytest.mark.parametrize(
    "words", [["predict", "--source", "{data}/new"], ["embed", "--table", "s0"]], ids=["predict", "embed"]
)
def test_ranks_find_a_damaged_checkpoint_together(words, data, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    damaged = tmp_path / f"run/checkpoints/step-{STEPS:09d}/__0_0.distcp"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    command, *flags = (word.format(data=data) for word in words)
    out = ["--out", tmp_path / "run", "--to", tmp_path / "to", "--checkpoint", STEPS]
    done = run_trainer(command, run / "config.toml", *out, *flags, ranks=2)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"--checkpoint is {STEPS}, which is damaged: __0_0.distcp is damaged: its CRC-32 is " in line
    assert not (tmp_path / "to").exists()
