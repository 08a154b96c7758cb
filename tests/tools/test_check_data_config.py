"""First configurations, written from files alone: they train as they are, on data sets that others made."""

import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from checked_data import clean_data
from command import run_trainer

from trainer.__main__ import main as trainer
from trainer.config.root import load_config

OTHERS = Path(__file__).parents[1] / "support" / "data"


def written(folder, *words):
    """Returns the configuration that is written for some files, as it is in the file."""
    file = folder / "first.toml"
    assert trainer(["check-data", "--source", *map(str, words), "--write-config", str(file)]) == 0
    load_config(str(file))
    return tomllib.loads(file.read_text())


@pytest.mark.parametrize(
    ("name", "words", "label"),
    [
        ("clothing_reviews", (), "Recommended IND"),
        ("rossi", ("--label", "arrest"), "arrest"),
        ("kidney_transplant", ("--label", "death"), "death"),
    ],
)
def test_a_data_set_of_others_trains_as_it_is(name, words, label, tmp_path):
    pq.write_table(pyarrow.csv.read_csv(OTHERS / f"{name}.csv"), tmp_path / "rows.parquet")
    tree = written(tmp_path, tmp_path / "rows.parquet", *words)
    assert tree["data"]["labels"] == [label]
    done = run_trainer("train", tmp_path / "first.toml", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


@pytest.mark.parametrize(("delimiter", "name"), [(",", "csv"), (";", "csv"), ("\t", "tsv.gz")])
def test_csv_needs_no_configuration(delimiter, name, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = clean_data()
    for number, columns in enumerate(made.columns()):
        table = pa.table(columns).append_column("words", pa.array([f"a|b {n % 3}" for n in range(1000)]))
        tags = pa.array(["|".join(map(str, one)) for one in columns["tags"].to_pylist()])
        age = pa.array(["NA" if one is None else str(one) for one in columns["age"].to_pylist()])
        table = table.set_column(table.column_names.index("tags"), "tags", tags)
        table = table.set_column(table.column_names.index("age"), "age", age)
        with pa.output_stream(tmp_path / f"part-{number}.{name}") as file:
            options = pyarrow.csv.WriteOptions(delimiter=delimiter, quoting_style="none")
            pyarrow.csv.write_csv(table, file, options)
    data = written(tmp_path, tmp_path, "--reader", name.partition(".")[0], "--rows", "3000")["data"]
    assert data["csv"]["strings"] == ["city", "words"]
    assert data["csv"]["lists"] == ["tags", "words"]
    assert data["csv"]["nulls"] == ["", "NA"]
    assert data["csv"].get("delimiter") == (";" if delimiter == ";" else None)
    assert data["dense"].keys() == {"price", "age"}
    assert data["sparse"].keys() == {"item", "city", "tags", "words"}
    assert data["sparse"]["tags"]["hotness"] == pytest.approx(2.0, abs=0.1)
    done = run_trainer("train", tmp_path / "first.toml", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


def test_csv_without_a_header_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.csv").write_text("1,0.5,7\n0,0.25,8\n")
    assert trainer(["check-data", "--reader", "csv", "--source", str(tmp_path / "a.csv")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "a.csv, line 1: the header names a column '1', so it seems to be a row" in error


def test_splits_and_columns_are_told_from_names_types_and_values(tmp_path, capsys):
    made = clean_data()
    for split in made.splits:
        for columns in made.columns(split):
            columns["user_id"] = pa.array(np.arange(len(columns["when"])) % 150)
            columns["secret"] = pa.array(columns["label"].to_numpy() * 3 + 1)
            columns["same"] = pa.array(["x"] * len(columns["when"]))
    made.write(tmp_path / "data")
    data = written(tmp_path, tmp_path / "data")["data"]
    for split in ("train", "validation", "test"):
        assert data[split] == [str(tmp_path / "data" / split)]
    assert data["labels"] == ["label"]
    assert data["groups"] == ["user_id"]
    assert data["sparse"]["user_id"] == {"rows": 150}
    assert data["sparse"]["city"]["ids"] == "hash"
    assert data["sparse"]["tags"] == {"rows": 64, "hotness": pytest.approx(2.0, abs=0.1)}
    assert data["sparse"].keys() == {"user_id", "item", "city", "tags"}
    assert data["dense"].keys() == {"price", "age"}
    assert data["weight"] == "importance"
    assert data["dense"]["age"]["missing"] == pytest.approx(40, abs=1)
    printed = capsys.readouterr().out
    assert "secret: an AUC of 1.000 alone" in printed
    assert "same: one value" in printed


def test_skewed_numbers_get_a_logarithm_and_become_standard(tmp_path):
    made = clean_data()
    for split in made.splits:
        made.change("price", lambda price, _: np.exp(2 * price), split)
    made.write(tmp_path / "data")
    rule = written(tmp_path, tmp_path / "data")["data"]["dense"]["price"]
    assert rule["transform"] == "log1p"
    values = np.log1p(pq.read_table(tmp_path / "data" / "train")["price"].to_numpy())
    assert (rule["mean"], rule["std"]) == (
        pytest.approx(values.mean(), rel=1e-3),
        pytest.approx(values.std(), rel=1e-3),
    )


def test_files_of_all_splits_in_one_directory_are_told_by_their_names(tmp_path):
    columns = clean_data().splits["train"]
    for name, rows in (("train-0", columns[0]), ("train-1", columns[1]), ("val", columns[2]), ("latest", columns[3])):
        pq.write_table(pa.table(rows), tmp_path / f"{name}.parquet")
    data = written(tmp_path, tmp_path)["data"]
    assert [Path(url).stem for url in data["train"]] == ["latest", "train-0", "train-1"]
    assert [Path(url).stem for url in data["validation"]] == ["val"]
    assert "test" not in data


def test_a_directory_without_splits_stays_a_directory(tmp_path):
    made = clean_data()
    made.write(tmp_path / "data")
    assert written(tmp_path, tmp_path / "data" / "train")["data"]["train"] == [str(tmp_path / "data" / "train")]


def test_files_without_a_label_or_ids_are_refused_in_one_line(tmp_path, capsys):
    columns = clean_data().splits["train"][0]
    numbers = {name: columns[name] for name in ("price", "age")}
    pq.write_table(pa.table(numbers), tmp_path / "a.parquet")
    assert trainer(["check-data", "--source", str(tmp_path / "a.parquet")]) == 2
    pq.write_table(pa.table(numbers | {"label": columns["label"]}), tmp_path / "a.parquet")
    assert trainer(["check-data", "--source", str(tmp_path / "a.parquet")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--label is unset" in first
    assert "no column of ids" in second
