"""Tables with weights of their own: vectors from files that they begin with, and the precision of single tables."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import run_trainer, write_config
from jobs import config, launch_rounds, losses, saved_tensors, write_rows

from trainer.__main__ import main as trainer
from trainer.config.model import TableInit
from trainer.config.root import Config
from trainer.models.table_init import initial_rows
from trainer.plan.tables import tables_to_plan, with_allowed_types
from trainer.training.sharded_model import build_unsharded_model

TABLE = "model.model.sparse_arch.embedding_bag_collection.embedding_bags.{}.weight".format
COLUMNS, STEPS, STOP = 16, 6, 3
NORMAL = TableInit(distribution="normal", std=0.1)
TYPES = {
    "s0": {"sharding_types": ["row_wise"]},
    "s1": {"sharding_types": ["column_wise"]},
    "s2": {"sharding_types": ["table_row_wise"]},
    "s3": {"sharding_types": ["table_wise"]},
    "s4": {"sharding_types": ["data_parallel"]},
}


def write_vectors(path, **columns):
    """Writes columns to a Parquet file in two row groups; `vector` is an array, `[N, D]`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    vectors = columns.pop("vector")
    flat = pa.array(vectors.ravel())
    table = pa.table(columns | {"vector": pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])})
    pq.write_table(table, path, row_group_size=-(-len(table) // 2))


def settings(folder, **changes):
    """One file of vectors by id with an offset, an array, vectors by row of hashed ids, by listed text, and by id."""
    vectors = folder / "vectors"
    tables = {
        "s0": {"vectors": str(vectors / "by_id"), "init": NORMAL.model_dump(exclude_defaults=True)},
        "s1": {"vectors": str(vectors / "s1.npy"), "precision": "fp16"},
        "s2": {"vectors": str(vectors / "by_row.parquet")},
        "s3": {"vectors": str(vectors / "listed.parquet")},
        "s4": {"vectors": str(vectors / "wrapped.parquet")},
    }
    base = {"model__tables": tables, "planner__tables": TYPES, "train__steps": STEPS}
    tree = config(folder / "data", **base | changes)
    tree["data"]["sparse"]["s0"] |= {"rows": 120, "offset": 5}
    tree["data"]["sparse"]["s2"]["ids"] = "hash"
    tree["data"]["sparse"]["s3"] |= {"ids": "vocabulary", "vocabulary": str(folder / "words/s3.parquet")}
    tree["data"]["sparse"]["s4"]["ids"] = "modulo"
    return tree


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """The folder, and the rows of each table that begin with vectors, each row with its vector."""
    folder, random = tmp_path_factory.mktemp("table-weights"), np.random.default_rng(0)
    write_rows(folder / "data", [130, 126])
    words = ["--source", str(folder / "data"), "--columns", "s3", "--out", str(folder / "words"), "--min-count", "3"]
    assert trainer(["vocabulary", *words]) == 0
    listed = pq.read_table(folder / "words/s3.parquet")
    settings_of = json.loads(listed.schema.metadata[b"vocabulary"])

    def drawn(rows):
        return random.standard_normal((rows, COLUMNS)).astype(np.float32)

    ids = random.permutation(100)[:60]
    found = {"s0": (ids + 5, drawn(60)), "s1": (np.arange(101), drawn(101))}
    for part in (0, 1):
        chosen = slice(30 * part, 30 * part + 30)
        write_vectors(folder / f"vectors/by_id/{part}.parquet", id=ids[chosen], vector=found["s0"][1][chosen])
    (folder / "vectors/by_id/_draft.parquet").write_text("no Parquet")
    np.save(folder / "vectors/s1.npy", found["s1"][1].astype(np.float64))
    found["s2"] = (random.permutation(102)[:40], drawn(40))
    write_vectors(folder / "vectors/by_row.parquet", row=found["s2"][0], vector=found["s2"][1])
    known = listed["id"].to_numpy()
    found["s3"] = (settings_of["unseen_rows"] + np.arange(len(known)), drawn(len(known)))
    more = np.array([1_000, 2_000])  # ids that the vocabulary does not list
    write_vectors(
        folder / "vectors/listed.parquet", id=np.append(known, more), vector=np.append(found["s3"][1], drawn(2), 0)
    )
    found["s4"] = (np.arange(10), drawn(10))
    write_vectors(folder / "vectors/wrapped.parquet", id=104 * 7 + np.arange(10), vector=found["s4"][1])
    return folder, found


@pytest.fixture(scope="module")
def runs(given):
    """Runs that change no weight, and runs that learn, on each number of ranks; runs that are resumed without files."""
    folder, _ = given
    still = {
        "train__steps": 1,
        "optimizer__sparse__learning_rate": 0.0,
        "optimizer__dense__learning_rate": 0.0,
        "optimizer__ema": {"decay": 0.5, "tables": True},
    }

    def job(name, **changes):
        return {"config": settings(folder, **changes), "out": str(folder / name)}

    first = {"train__steps": STOP}
    rounds = [
        (1, [job("still-1", **still), job("learns-1"), job("resumed-1", **first)]),
        (2, [job("still-2", **still), job("learns-2"), job("resumed-2", **first)]),
    ]
    output = launch_rounds(rounds, folder)
    shutil.move(folder / "vectors", folder / "moved")
    launch_rounds([(ranks, [job(f"resumed-{ranks}") | {"resume": "must"}]) for ranks in (1, 2)], folder)
    shutil.move(folder / "moved", folder / "vectors")
    return folder, output


@pytest.mark.parametrize("ranks", [1, 2])
def test_rows_begin_with_their_vectors_and_others_by_init(given, runs, ranks):
    folder, vectors = given
    tensors = saved_tensors(folder / f"still-{ranks}", 1)
    for number in range(6):
        table = f"s{number}"
        weight = tensors[TABLE(table)]
        rows, columns = (torch.arange(count) for count in weight.shape)
        init = NORMAL if table == "s0" else TableInit()
        expected = initial_rows(rows, columns, weight.shape, table, 0, init=init)
        if table in vectors:
            expected[torch.from_numpy(vectors[table][0])] = torch.from_numpy(vectors[table][1])
        assert weight.dtype == (torch.float16 if table == "s1" else torch.float32)
        assert torch.equal(weight, expected.to(weight.dtype)), table
        average = tensors[f"ema.{TABLE(table).removeprefix('model.')}"]
        assert torch.equal(average, weight.float()), table


def test_the_rows_of_each_table_are_reported(given, runs):
    _, output = runs
    assert output.count("table 's0': 60 rows begin with vectors of ") == 6
    assert output.count("model.tables.s0.vectors: left out 1 path, hidden or temporary: ") == 6
    assert "table 's3': " in output
    assert output.count("; 2 ids have no row of their own and are left out") == 6
    assert "table 's5'" not in output


def test_losses_do_not_depend_on_ranks_and_a_resume_needs_no_file(runs):
    folder, _ = runs
    np.testing.assert_allclose(losses(folder / "learns-1"), losses(folder / "learns-2"), rtol=1e-5)
    for ranks in (1, 2):
        assert losses(folder / f"resumed-{ranks}") == losses(folder / f"learns-{ranks}")
        found, expected = (saved_tensors(folder / f"{name}-{ranks}", STEPS) for name in ("resumed", "learns"))
        assert all(torch.equal(found[name], value) for name, value in expected.items())
        assert [name for name in found if found[name].dtype == torch.float16] == [TABLE("s1")]


def test_the_plan_counts_the_bytes_of_each_table(given):
    folder, _ = given
    settings_of = Config.model_validate(settings(folder))
    model = build_unsharded_model(settings_of, torch.device("cpu"))
    tables = tables_to_plan(model, settings_of, with_allowed_types(settings_of))
    assert {table.name: table.value_bytes for table in tables} == {f"s{i}": 2 if i == 1 else 4 for i in range(6)}


@pytest.mark.more("a table of fp16 cannot be replicated: the same check as for all tables")
def test_a_table_of_fp16_is_not_replicated(given, tmp_path, capsys):
    tree = settings(given[0], planner__tables={"s1": {"sharding_types": ["data_parallel"]}})
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "cannot have: model.tables.s1.precision is 'fp16'; use 'fp32'" in capsys.readouterr().err


def test_what_embed_wrote_of_a_table_is_taken(runs, tmp_path, capsys):
    folder, _ = runs
    words = [folder / "learns-1/config.toml", "--out", folder / "learns-1", "--table", "s5", "--to", tmp_path / "s5"]
    assert trainer(["embed", *map(str, words)]) == 0
    tree = settings(folder, model__tables={"s5": {"vectors": str(tmp_path / "s5")}}, train__steps=1)
    tree["optimizer"]["sparse"]["learning_rate"] = 0.0
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 0
    expected = saved_tensors(folder / "learns-1", STEPS)[TABLE("s5")]
    assert torch.equal(saved_tensors(tmp_path / "out", 1)[TABLE("s5")], expected)


def test_a_fine_tuned_table_takes_its_weights_from_one_place(runs, tmp_path, capsys):
    folder, _ = runs
    tree = settings(folder, finetune={"checkpoint": str(folder / "learns-1")}, train__steps=1)
    file = write_config(tmp_path / "config.toml", tree)
    flags = [str(file), "--out", str(tmp_path / "out")]
    assert trainer(["train", *flags]) == 2
    assert "has table 's0', but model.tables.s0.vectors is set, too; list 's0' in" in capsys.readouterr().err
    assert trainer(["train", *flags, "--finetune.exclude", "s0", "s1", "s2", "s3", "s4"]) == 0


GOOD = np.zeros((4, COLUMNS), np.float32)
WRONG = {
    "nowhere": ("s0", "nowhere.parquet", None, "model.tables.s0.vectors: no Parquet file at"),
    "no array": ("s1", "text.npy", b"text", "which is no .npy file"),
    "other rows": ("s1", "short.npy", GOOD, "an array of float32 of the shape [4, 16]; the table needs floats of the"),
    "integers": ("s1", "whole.npy", np.zeros((101, COLUMNS), np.int64), "an array of int64 of the shape [101, 16]"),
    "not finite": ("s1", "nan.npy", np.full((101, COLUMNS), np.nan), "the vector of row 0 of the table is not finite;"),
    "no Parquet": ("s0", "text.parquet", b"text", "cannot be read: "),
    "no ids": ("s0", "no_ids.parquet", {"vector": GOOD, "word": [1, 2, 3, 4]}, "it needs vector, and id or row"),
    "outside": ("s0", "far.parquet", {"vector": GOOD, "id": [1, 2, 900, 4]}, "column id: 900 is outside [0, 100)"),
    "row outside": (
        "s0",
        "below.parquet",
        {"vector": GOOD, "row": [1, -2, 3, 4]},
        "column row: -2 is outside [0, 100)",
    ),
    "null": ("s0", "null.parquet", {"vector": GOOD, "id": [1, None, 3, 4]}, "has a null in column id"),
    "twice": ("s0", "twice.parquet", {"vector": GOOD, "id": [1, 2, 3, 2]}, "has several vectors for row 2"),
    "too wide": (
        "s0",
        "wide.parquet",
        {"vector": GOOD[:, :8], "id": [1, 2, 3, 4]},
        "have 8 numbers, but the table has 16",
    ),
    "hashed": ("s2", "hashed.parquet", {"vector": GOOD, "id": [1, 2, 3, 4]}, "data.sparse.s2 are made or hashed"),
    "integer vectors": ("s0", "kind.parquet", {"vector": GOOD.astype(int), "id": [1, 2, 3, 4]}, "lists of floats"),
}


@pytest.mark.parametrize("case", WRONG)
def test_vectors_that_do_not_fit_are_refused_in_one_line(given, tmp_path, capsys, case):
    table, name, content, message = WRONG[case]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif isinstance(content, np.ndarray):
        np.save(tmp_path / name, content)
    elif content:
        write_vectors(tmp_path / name, **content)
    tree = config(given[0] / "data", model__tables={table: {"vectors": str(tmp_path / name)}}, train__steps=1)
    tree["data"]["sparse"]["s2"]["ids"] = "hash"
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out/config.toml").exists()


def test_a_vector_that_fp16_cannot_hold_is_refused(given, tmp_path, capsys):
    np.save(tmp_path / "large.npy", np.full((101, COLUMNS), 1e5))
    table = {"vectors": str(tmp_path / "large.npy"), "precision": "fp16"}
    tree = config(given[0] / "data", model__tables={"s1": table}, train__steps=1)
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
    assert "the vector of row 0 of the table is not finite in fp16; correct it" in capsys.readouterr().err


@pytest.mark.more("rank 0 reports all errors of reading")
def test_rank_0_reports_wrong_vectors_for_all_ranks(given, tmp_path):
    tree = config(given[0] / "data", model__tables={"s1": {"vectors": str(tmp_path / "nowhere.npy")}})
    done = run_trainer("train", write_config(tmp_path / "c.toml", tree), "--out", tmp_path / "out", ranks=2)
    assert done.returncode != 0
    assert done.stderr.count("error: model.tables.s1.vectors is '") == 1
