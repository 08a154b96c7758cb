"""Vectors of a catalogue and of tables: a search in the files finds what the evaluation found; ids are their own."""

import json
import signal
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer, start_trainer, write_config
from jobs import config, launch, saved_tensors, write_rows
from predictions import read

from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_recommend.py searches vectors")

STEPS = 6
WORDS = ["cat", "dog", "eel", "fox"]


def run(*words):
    assert trainer([str(word) for word in words]) == 0


def vectors(folder):
    """Returns ids and vectors, `[N]` and `[N, D]`."""
    table = read(folder)
    assert pa.types.is_fixed_size_list(table.schema.field("vector").type)
    return table.column(0), np.array(table["vector"].to_pylist())


@pytest.fixture(scope="module")
def towers(tmp_path_factory):
    """The ready-made two towers after a few steps on MovieLens, with their evaluation."""
    folder = tmp_path_factory.mktemp("towers")
    if trainer(["movielens", "--out", str(folder / "data")]):
        pytest.skip("cannot get MovieLens")
    flags = [word for split in ("train", "validation", "test") for word in (f"--data.{split}", folder / "data" / split)]
    flags += ["--data.catalogue.items", folder / "data/items.parquet", "--evaluate.every-steps", 0]
    run("train", "movielens_two_tower", "--out", folder / "run", *flags, "--train.epochs", "None", "--train.steps", 40)
    return folder


def test_exact_search_in_the_files_has_the_recall_of_the_evaluation(towers):
    both = [towers / "run/config.toml", "--out", towers / "run", "--rows-per-part", 512, "--batch-size", 256]
    run("embed", *both, "--output", "liked_item", "--to", towers / "items")
    test = pq.read_table(towers / "data/test")
    rows = test.append_column("row", pa.array(range(len(test))))
    pq.write_table(rows.drop_columns(["label", "item_id", "genres", "release_year"]), towers / "queries.parquet")
    source = ["--source", towers / "queries.parquet", "--id-column", "row"]
    run("embed", *both, "--output", "liked_query", *source, "--to", towers / "asked")
    ids, items = vectors(towers / "items")
    numbers, queries = vectors(towers / "asked")
    assert ids.to_pylist() == pq.read_table(towers / "data/items.parquet")["item_id"].to_pylist()
    assert numbers.to_pylist() == [*range(len(test))]
    liked = test["label"].to_numpy() > 0
    wanted = np.searchsorted(ids.to_numpy(), test["item_id"].to_numpy()[liked])
    assert (ids.to_numpy()[wanted] == test["item_id"].to_numpy()[liked]).all()
    scores = (queries[liked] @ items.T).astype(np.float32)
    rank = (scores > scores[np.arange(len(scores)), wanted][:, None]).sum(1)
    evaluated = json.loads((towers / "run/evaluations.jsonl").read_text().splitlines()[-1])
    assert evaluated["split"] == "test"
    assert 0.05 < evaluated["recall@50"] < 0.95
    for k in (10, 50):
        assert (rank < k).mean() == pytest.approx(evaluated[f"recall@{k}"], abs=1e-9)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A model with a table for each kind of ids."""
    folder = tmp_path_factory.mktemp("tables")
    data = write_rows(folder / "data", [300])
    file = next(data.iterdir())
    table = pq.read_table(file)
    text = pa.array([WORDS[number % 4] for number in table["s2"].to_pylist()])
    table = table.append_column("unseen", pa.nulls(len(table), pa.int64()))
    pq.write_table(table.set_column(table.column_names.index("s2"), "s2", text), file)
    run("vocabulary", "--source", data, "--columns", "s2", "--out", folder / "words", "--unseen-rows", 3)
    tree = config(data, train__steps=STEPS)
    tree["data"]["sparse"] |= {
        "s0": {"rows": 40, "ids": "managed"},
        "s2": {"rows": 9, "ids": "vocabulary", "vocabulary": str(folder / "words/s2.parquet")},
        "s3": {"rows": 1000, "ids": "hash"},
        "unseen": {"rows": 9, "ids": "managed"},
    }
    launch([{"config": tree, "out": str(folder / "run")}], 2, folder)
    return folder


def weight(folder, table):
    tensors = saved_tensors(folder / "run", STEPS)
    return next(value for name, value in tensors.items() if name.endswith(f".embedding_bags.{table}.weight")).numpy()


@pytest.mark.few(2, "two stand for all")
@pytest.mark.parametrize("table", ["s0", "s1", "s2", "s3"])
def test_rows_of_a_table_by_their_ids(tables, table, tmp_path):
    run("embed", tables / "run/config.toml", "--out", tables / "run", "--table", table, "--to", tmp_path / "v")
    ids, found = vectors(tmp_path / "v")
    expected, name = weight(tables, table), read(tmp_path / "v").column_names[0]
    if table == "s0":
        known = saved_tensors(tables / "run", STEPS)["managed.s0.ids"].numpy()
        assert 30 < len(ids) == len({*ids.to_pylist()})
        rows = [int(np.flatnonzero(known == id)[0]) for id in ids.to_pylist()]
    elif table == "s2":
        words = pq.read_table(tables / "words/s2.parquet")["id"].to_pylist()
        assert sorted(words) == WORDS
        rows = [3 + words.index(id) for id in ids.to_pylist()]
        assert len(rows) == 4
    else:
        rows = [*range(len(expected))]
        assert ids.to_pylist() == rows
    assert name == ("row" if table == "s3" else "id")
    np.testing.assert_array_equal(found, expected[rows])


@pytest.mark.more("test_reshard.py has all plans")
def test_a_table_is_the_same_from_any_plan_and_number_of_ranks(tables, tmp_path):
    words = ["embed", tables / "run/config.toml", "--out", tables / "run", "--table", "s1", "--rows-per-part", "30"]
    run(*words, "--to", tmp_path / "1")
    for ranks, plan in ((2, "row_wise"), (4, "column_wise")):
        flags = ["--to", tmp_path / str(ranks), "--planner.sharding-types", plan]
        assert run_trainer(*words, *flags, ranks=ranks).returncode == 0
        assert read(tmp_path / str(ranks)).equals(read(tmp_path / "1"))


@pytest.mark.more("test_predict_killed.py stops a prediction so")
def test_a_signal_stops_it_between_two_parts_and_the_same_command_continues_it(tables, tmp_path):
    words = ["embed", tables / "run/config.toml", "--out", tables / "run", "--table", "s3"]
    tiny = [*words, "--rows-per-part", 2, "--to", tmp_path / "stopped"]
    job = start_trainer(tiny, tmp_path / "log", tmp_path / "log", 0)
    while job.poll() is None and not [*tmp_path.glob("stopped/*.parquet")]:
        time.sleep(0.002)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 75
    said = (tmp_path / "log").read_text()
    assert "SIGTERM: the job stops after this step, and keeps the parts that are written" in said
    assert "The same command continues it." in said
    assert 0 < (written := len([*tmp_path.glob("stopped/*.parquet")])) < 500
    assert {path.name for path in (tmp_path / "stopped").iterdir() if path.suffix != ".parquet"} == {"job.json"}
    done = run_trainer(*tiny)
    assert f"1,000 rows in 500 parts, {written} of which are there" in done.stdout
    run(*words, "--to", tmp_path / "undisturbed")
    assert read(tmp_path / "stopped").equals(read(tmp_path / "undisturbed"))


def test_a_table_without_ids_is_refused(tables, tmp_path, capfd):
    words = ["embed", tables / "run/config.toml", "--out", tables / "run", "--table", "unseen", "--to", tmp_path / "v"]
    assert trainer([str(word) for word in words]) == 2
    line = capfd.readouterr().err
    assert line == "error: --table is 'unseen', in which no id has a row yet; train first\n"
    assert not (tmp_path / "v").exists()


WRONG = {
    "neither": ([], "--output is None and --table is None; set one of them"),
    "both": (["--table", "s1", "--output", "x"], "set one of them"),
    "no such table": (["--table", "s9"], "--table is 's9', which the model does not have"),
    "no vector": (["--output", "label_probability"], "which is no vector of the model"),
    "a source of a table": (["--table", "s1", "--source", "a"], "leave them out with --table"),
    "no rows in a part": (["--table", "s1", "--rows-per-part", "0"], "--rows-per-part is 0; it must be at least 1"),
    "no run": (["--table", "s1"], "which holds no committed checkpoint; train first"),
    "another word": (["--table", "s1", "--checkpoint", "last"], "--checkpoint is 'last'; allowed: newest, best"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(case, tmp_path, capfd):
    flags, message = WRONG[case]
    file = write_config(tmp_path / "config.toml", config(tmp_path))
    assert trainer(["embed", str(file), "--out", str(tmp_path), "--to", str(tmp_path / "v"), *flags]) == 2
    line = capfd.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "v").exists()
