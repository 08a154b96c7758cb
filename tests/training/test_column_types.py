"""What a run is trained on decides what its columns mean: all data that is read later is held to that."""

import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from command import run_trainer, write_config
from jobs import config, write_rows


def write(folder, change=None, seed=0):
    """Writes rows with ids to hash, a list of them, and a day; changed by a function of their table."""
    write_rows(folder, [96], seed)
    table = pq.read_table(folder / "part-00.parquet")
    day = table["s2"].cast(pa.int32()).cast(pa.date32())
    lists = pa.array([[n, n + 1] for n in table["s1"].to_pylist()])
    table = table.set_column(table.schema.get_field_index("s1"), "s1", lists).append_column("day", day)
    pq.write_table(change(table) if change else table, folder / "part-00.parquet")
    return folder


def cast(name, dtype):
    return lambda table: table.set_column(table.schema.get_field_index(name), name, table[name].cast(dtype))


def as_single(table):
    return table.set_column(table.schema.get_field_index("s1"), "s1", pc.list_element(table["s1"], 0))


CHANGES = {
    "strings": (cast("s0", pa.string()), "column 's0' has strings (string), but data.sparse.s0 had integers in"),
    "timestamps": (cast("day", pa.timestamp("us")), "column 'day' has timestamps (timestamp[us]), but data.dense.day"),
    "single": (as_single, "column 's1' has integers (int64), but data.sparse.s1 had lists of integers in"),
}
SAME = {
    "wide": cast("s0", pa.int64()),
    "empty": lambda table: table.set_column(table.schema.get_field_index("s0"), "s0", pa.nulls(len(table))),
}


def tree(folder, **changes):
    found = config(folder / "train", model__name="dlrm", train__steps=2, data__dense={"d0": {}, "day": {}})
    found["data"]["sparse"] = {name: {"rows": 100, "ids": "hash"} for name in ("s0", "s1")}
    found["data"]["validation"] = [str(folder / "wide")]
    found["evaluate"] = {"every_steps": 2, "metrics": ["auc"]}
    for key, value in changes.items():
        section, name = key.split("__")
        found[section][name] = value
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, and the same rows in files of other types, and a run that was trained on the data."""
    folder = tmp_path_factory.mktemp("types")
    write(folder / "train")
    for name, change in SAME.items() | {name: change for name, (change, _) in CHANGES.items()}.items():
        write(folder / name, change)
    file = write_config(folder / "config.toml", tree(folder))
    done = run_trainer("train", file, "--out", folder / "run")
    assert done.returncode == 0, done.stderr
    return folder


def refused(done, message, origin):
    assert done.returncode == 2, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    assert message in line
    assert origin in line


@pytest.mark.parametrize("name", CHANGES)
def test_all_that_reads_data_refuses_other_types(folder, tmp_path, name):
    message, data = CHANGES[name][1], folder / name
    origin = "the data of the checkpoint at"
    shutil.copytree(folder / "run", tmp_path / "run")
    run = ("--out", tmp_path / "run")
    file = write_config(tmp_path / "config.toml", tree(folder, data__test=[str(data)]))
    refused(run_trainer("evaluate", file, *run), message, origin)
    refused(run_trainer("predict", file, *run, "--source", data, "--to", tmp_path / "to"), message, origin)
    refused(run_trainer("export", file, *run, "--split", "test", "--to", tmp_path / "to"), message, origin)
    file = write_config(tmp_path / "config.toml", tree(folder, data__validation=[str(data)]))
    refused(run_trainer("train", file, "--out", tmp_path / "new"), message, "data.train")


def test_files_that_were_replaced_are_refused_whatever_else_is_accepted(folder, tmp_path):
    shutil.copytree(folder / "train", tmp_path / "train")
    file = write_config(tmp_path / "config.toml", tree(folder, data__train=[str(tmp_path / "train")]))
    arguments = ("train", file, "--out", tmp_path / "run", "--data.accept-changed", "True")
    assert run_trainer(*arguments).returncode == 0
    shutil.copy(folder / "strings" / "part-00.parquet", tmp_path / "train")
    refused(run_trainer(*arguments, "--train.steps", "4"), CHANGES["strings"][1], "the data of the checkpoint at")
    shutil.copy(folder / "wide" / "part-00.parquet", tmp_path / "train")
    done = run_trainer(*arguments, "--train.steps", "4")
    assert done.returncode == 0, done.stderr


def test_a_segment_is_held_to_those_before(folder, tmp_path):
    found = tree(folder, data__validation=[], data__segments={"path": f"{folder}/{{segment}}", "first": "single"})
    found["data"].pop("train")
    found["train"].pop("steps")
    found["evaluate"].pop("every_steps")
    file = write_config(tmp_path / "config.toml", found)
    done = run_trainer("train", file, "--out", tmp_path / "out")
    refused(done, CHANGES["strings"][1], "segment single")


def test_other_types_with_the_same_ids_are_read(folder, tmp_path):
    found = {}
    for name in ("train", *SAME):
        words = ("--source", folder / name, "--to", tmp_path / name, "--keep-columns")
        done = run_trainer("predict", folder / "config.toml", "--out", folder / "run", *words)
        assert done.returncode == 0, done.stderr
        (part,) = (tmp_path / name).glob("*.parquet")
        found[name] = pq.read_table(part)
    assert found["wide"].equals(found["train"])


@pytest.mark.parametrize(
    ("name", "message"),
    [("strings", "data.sparse.s0 has strings"), ("timestamps", "data.dense.day has timestamps")],
)
def test_fine_tuning_on_other_types_is_refused(folder, tmp_path, name, message):
    found = tree(folder, data__train=[str(folder / name)], data__validation=[])
    found |= {"finetune": {"checkpoint": str(folder / "run")}, "evaluate": {}}
    file = write_config(tmp_path / "config.toml", found)
    refused(run_trainer("train", file, "--out", tmp_path / "out"), message, "finetune.checkpoint")
