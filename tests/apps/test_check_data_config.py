"""First configurations, written from files alone: they train as they are, on data sets that others made."""

import hashlib
import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from checked_data import clean_data
from command import run_trainer, write_config
from predictions import read
from sklearn.metrics import mean_poisson_deviance

from torchx_recsys.apps.export.load import load
from trainer.__main__ import main as trainer
from trainer.config.root import load_config

OTHERS = Path(__file__).parents[1] / "support" / "data"


def written(folder, *words):
    """Returns the configuration that is written for some files, as it is in the file."""
    file = folder / "first.toml"
    assert trainer(["check-data", "--source", *map(str, words), "--write-config", str(file)]) == 0
    load_config(str(file))
    return tomllib.loads(file.read_text())


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize(
    ("name", "words", "label"),
    [
        ("rossi", ("--label", "arrest"), "arrest"),
        ("kidney_transplant", ("--label", "death"), "death"),
        ("clothing_reviews", (), "Recommended IND"),
    ],
)
def test_a_data_set_of_others_trains_as_it_is(name, words, label, tmp_path):
    pq.write_table(pyarrow.csv.read_csv(OTHERS / f"{name}.csv"), tmp_path / "rows.parquet")
    tree = written(tmp_path, tmp_path / "rows.parquet", *words)
    assert tree["data"]["labels"] == [label]
    done = run_trainer("train", tmp_path / "first.toml", "--out", tmp_path / "run", "--train.steps", "50")
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


@pytest.mark.few(1, "one stands for all")
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
    assert data["sparse"].keys() == {"item", "city", "tags", "words", "price_bucket", "age_bucket"}
    assert data["sparse"]["tags"]["hotness"] == pytest.approx(2.0, abs=0.1)
    done = run_trainer("train", tmp_path / "first.toml", "--out", tmp_path / "run", "--train.steps", "50")
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


def frame(rows=600):
    """Rows of a table as people keep it: a class, a port, an age that may be missing."""
    random = np.random.default_rng(0)
    for number in range(rows):
        port = random.choice(["Cherbourg", "Queenstown", "Southampton", "Belfast"])
        age = "" if number % 7 == 0 else f"{random.normal(40, 10):.1f}"
        yield number, int(random.random() < 0.4 + 0.2 * (port == "Belfast")), port, age


def as_pandas_writes(file):
    lines = [f"{number},{label},{port},{age}\n" for number, label, port, age in frame()]
    file.write_text("".join([",survived,port,age\n", *lines]))


def as_r_writes(file):
    lines = [f'"{number + 1}",{label},"{port}",{age or "NA"}\n' for number, label, port, age in frame()]
    file.write_text("".join(['"","survived","port","age"\n', *lines]))


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize("write", [as_pandas_writes, as_r_writes])
def test_csv_with_an_index_of_rows_is_checked_trained_on_and_exported_as_it_is(write, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "latest-test").mkdir()  # whose name divides no files that are named from within
    monkeypatch.chdir(tmp_path / "latest-test")
    write(Path("rows.csv"))
    words = ["--reader", "csv", "--label", "survived", "--write-config", "first.toml", "--json", "found.json"]
    assert trainer(["check-data", "--source", "rows.csv", *words]) == 0
    assert "row index: the first column has no name" in " ".join(capfd.readouterr().out.split())
    findings = json.loads(Path("found.json").read_text())["findings"]
    assert ("note", "row index") in [(one["severity"], one["check"]) for one in findings]
    data = tomllib.loads(Path("first.toml").read_text())["data"]
    assert data["train"] == ["rows.csv"]
    assert (data["sparse"].keys(), data["dense"].keys()) == ({"port", "age_bucket"}, {"age"})
    done = run_trainer("train", "first.toml", "--out", "runs/first", "--train.steps", "50")
    assert done.returncode == 0, done.stderr
    export = ["export", "first.toml", "--out", "runs/first", "--to", "served"]
    assert trainer(export) == 2
    assert "data.validation is empty; take --split train, or name its files" in capfd.readouterr().err
    assert trainer([*export, "--split", "train"]) == 0
    assert trainer(["predict", "first.toml", "--out", "runs/first", "--source", "rows.csv", "--to", "parts"]) == 0
    assert "600 rows in 1 part in parts" in capfd.readouterr().out


def test_of_two_columns_with_one_name_none_is_used(tmp_path, capsys):
    """Training refuses such a column, and takes the others."""
    draw = np.random.default_rng(0)
    columns = [pa.array(draw.integers(0, 9, 600)), pa.array(draw.integers(0, 2, 600))]

    def write(*names):
        table = pa.Table.from_arrays([columns[name in ("clicked", "label")] for name in names], [*names])
        pq.write_table(table, tmp_path / "a.parquet")
        return tmp_path / "a.parquet"

    def refused(*words):
        assert trainer([*map(str, words)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    first = tmp_path / "first.toml"
    data = written(tmp_path, write("item", "user", "price", "price", "clicked"))["data"]
    assert "more than one column of that name" in " ".join(capsys.readouterr().out.split())
    assert "price" not in {*data["dense"], *data["sparse"]}
    assert trainer(["check-data", str(first)]) == 0
    run = tmp_path / "run"
    assert trainer(["train", str(first), "--out", str(run), "--train.steps", "1"]) == 0
    predict = ["predict", first, "--out", run, "--source", tmp_path / "a.parquet"]
    for keep in ((), ("--keep-columns", "price")):
        line = refused(*predict, "--to", tmp_path / "to", *keep)
        assert "more than one column 'price', of which none can be kept" in line
    assert trainer([*map(str, [*predict, "--keep-columns", "item", "--to", tmp_path / "to"])]) == 0
    tree = tomllib.loads(first.read_text())
    tree["data"]["select"] = {"filter": [["price", ">", 1]]}
    filtered = write_config(tmp_path / "filtered.toml", tree)
    line = refused("train", filtered, "--out", tmp_path / "filtered")
    assert "more than one column 'price', which data.select.filter names" in line
    check = ["check-data", "--source", write("item", "item", "user", "label", "label")]
    assert "'label' is named like one, but" in refused(*check)
    assert "--label is 'label', and" in refused(*check, "--label", "label")
    assert "--time is 'item', and" in refused(*check, "--time", "item")


def test_a_few_ids_have_a_vocabulary_beside_the_configuration(tmp_path, capsys):
    """It has the ids of all rows, of which the sample has some."""
    ports = [f"port {n % 40}" for n in range(4000)] + ["port of the last row"]
    table = {"port": ports, "stops": [[n % 3, -n % 7] for n in range(4001)], "label": [n % 3 % 2 for n in range(4001)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=100)
    tree = written(tmp_path, tmp_path / "a.parquet", "--rows", "500")["data"]["sparse"]
    url = str(tmp_path / "first-vocabulary" / "port.parquet")
    assert tree["port"] == {"rows": 42, "ids": "vocabulary", "vocabulary": url}
    assert pq.read_table(url).to_pydict() == {
        "id": [*sorted({*ports[:-1]}), ports[-1]],
        "count": [100] * 40 + [1],
    }
    assert "shared rows" not in capsys.readouterr().out
    again = ["check-data", "--source", str(tmp_path / "a.parquet"), "--write-config"]
    (tmp_path / "first.toml").unlink()
    assert trainer([*again, str(tmp_path / "first.toml")]) == 2
    assert "--write-config would replace" in capsys.readouterr().err
    assert trainer([*again, str(tmp_path / "first.toml"), "--overwrite", "True"]) == 0


def broken(checked):
    raise RuntimeError("planted")


def test_a_failure_leaves_no_vocabularies_for_the_next_try_to_be_refused_for(tmp_path, capsys):
    table = {"clicked": [n % 3 % 2 for n in range(2000)], "shop": [f"shop {n % 11}" for n in range(2000)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    again = ["check-data", "--source", f"{tmp_path}/a.parquet", "--write-config", f"{tmp_path}/mine.toml"]
    with pytest.raises(RuntimeError, match="planted"):
        trainer([*again, "--checks", f"{__name__}:broken"])
    assert [file.name for file in tmp_path.iterdir()] == ["a.parquet"]
    assert trainer(again) == 0
    assert {file.name for file in tmp_path.iterdir()} == {"a.parquet", "mine.toml", "mine-vocabulary"}


def test_lists_of_ids_beside_whole_numbers_are_checked(tmp_path):
    """A number has no table that a list could share."""
    table = {"clicked": [n % 3 % 2 for n in range(2000)], "price": [n * 7 % 1000 for n in range(2000)]}
    table |= {"tags": [["a", f"b {n % 5}"] for n in range(2000)], "seen": [[n % 7, n % 3] for n in range(2000)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    data = written(tmp_path, tmp_path / "a.parquet")["data"]
    assert (data["dense"].keys(), data["sparse"].keys()) == ({"price"}, {"tags", "seen", "price_bucket"})


def test_a_feature_that_is_named_like_an_input_of_another_one_gets_a_name_that_exports_take(tmp_path):
    table = {"clicked": [n % 3 % 2 for n in range(400)], "tags": [[n % 7, n % 3] for n in range(400)]}
    table |= {"tags.values": [n % 5 for n in range(400)], "size.values": [n % 11 for n in range(400)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    sparse = written(tmp_path, tmp_path / "a.parquet")["data"]["sparse"]
    assert sparse.keys() == {"tags", "tags_values", "size.values"}
    assert sparse["tags_values"] == {"rows": 5, "column": "tags.values"}


def test_few_hashed_ids_get_rows_in_which_none_shares_one(tmp_path, capsys):
    for number in range(8):  # of four ports in eight rows, two share one more often than not
        table = {"port": [f"port {number} {n}" for n in range(4)] * 100, "label": [n % 3 % 2 for n in range(400)]}
        pq.write_table(pa.table(table), tmp_path / "a.parquet")
        features = {"sparse": {"port": {"rows": 2, "ids": "hash"}}}
        tree = {"data": {"train": [str(tmp_path / "a.parquet")], **features}, "model": {"name": "wide_deep"}}
        words = ["--json", str(tmp_path / "found.json"), "--overwrite", "True"]
        assert trainer(["check-data", str(write_config(tmp_path / "hashed.toml", tree)), *words]) == 0
        found = {one["check"]: one for one in json.loads((tmp_path / "found.json").read_text())["findings"]}
        rows = int(found["table too small"]["remedy"].removeprefix("set data.sparse.port.rows to "))
        assert 8 <= rows <= 128
        places = [splitmix(blake2b(f"port {number} {n}")) % rows for n in range(4)]
        assert len({*places}) == 4


def blake2b(text):
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def splitmix(x):
    """The last steps of splitmix64, in Python's integers."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
    return x ^ (x >> 31)


def test_csv_without_a_header_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.csv").write_text("1,0.5,7\n0,0.25,8\n")
    assert trainer(["check-data", "--reader", "csv", "--source", str(tmp_path / "a.csv")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "a.csv, line 1: the header names a column '1', so it seems to be a row" in error


def test_splits_and_columns_are_told_from_names_types_and_values(tmp_path, monkeypatch, capsys):
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
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.toml").unlink()
    shutil.rmtree(tmp_path / "first-vocabulary")
    assert written(tmp_path, "./data")["data"]["train"] == ["data/train"]
    assert data["labels"] == ["label"]
    assert data["groups"] == ["user_id"]
    assert data["sparse"]["user_id"] == {"rows": 150}
    assert data["sparse"]["city"]["ids"] == "vocabulary"
    assert data["sparse"]["tags"] == {"rows": 64, "hotness": pytest.approx(2.0, abs=0.1)}
    assert data["sparse"].keys() == {"user_id", "item", "city", "tags", "price_bucket", "age_bucket"}
    assert data["dense"].keys() == {"price", "age"}
    assert data["weight"] == "importance"
    assert data["dense"]["age"]["missing"] == pytest.approx(40, abs=1)
    printed = capsys.readouterr().out
    assert "secret: an AUC of 1.000 alone" in printed
    assert "same: one value" in printed


def test_columns_of_types_that_are_not_looked_at_are_said(tmp_path, capsys):
    times = pa.array([n * 1000 for n in range(400)], pa.time32("ms"))
    table = {"clicked": [n % 3 % 2 for n in range(400)], "item": [n % 7 for n in range(400)], "at": times}
    table |= {"shape": [{"width": n} for n in range(400)]}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    of_times = "at: of type time32[ms], which is not looked at"
    tree = written(tmp_path, tmp_path / "a.parquet")
    assert of_times in capsys.readouterr().out
    assert '"shape": of type struct<width: int64>' in (tmp_path / "first.toml").read_text()
    tree["data"]["sparse"]["at"] = {"rows": 9, "ids": "hash"}
    assert trainer(["check-data", str(write_config(tmp_path / "first.toml", tree))]) == 0
    said = capsys.readouterr().out
    assert of_times in said
    assert "shape" not in said
    for flag in ("--label", "--time"):
        assert trainer(["check-data", "--source", str(tmp_path / "a.parquet"), flag, "at"]) == 2
        assert f"{flag} is 'at', a column of type time32[ms], which is not looked at" in capsys.readouterr().err


def test_a_label_is_suggested_where_several_would_do(tmp_path, capsys):
    flags = {"mobile": [n % 2 for n in range(400)], "came back": [n % 3 // 2 for n in range(400)]}
    pq.write_table(pa.table({"item_id": [n % 7 for n in range(400)], **flags}), tmp_path / "a.parquet")
    assert trainer(["check-data", "--source", str(tmp_path / "a.parquet")]) == 2
    said = "these have 0 and 1: mobile, came back; name one, such as --label 'came back'"
    assert said in capsys.readouterr().err
    flags = {"won": [None if n % 10 == 0 else n % 3 == 0 for n in range(400)]}
    pq.write_table(pa.table({"item_id": [n % 7 for n in range(400)], **flags}), tmp_path / "a.parquet")
    assert trainer(["check-data", "--source", str(tmp_path / "a.parquet")]) == 2
    said = "'won' would do, which has 40 nulls in 400 rows; leave these rows out, or write what they mean"
    assert said in capsys.readouterr().err


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


def test_files_without_a_label_or_a_feature_are_refused_in_one_line(tmp_path, capsys):
    columns = clean_data().splits["train"][0]
    numbers = {name: columns[name] for name in ("price", "age")}
    pq.write_table(pa.table(numbers), tmp_path / "a.parquet")
    assert trainer(["check-data", "--source", str(tmp_path / "a.parquet")]) == 2
    pq.write_table(pa.table({"label": columns["label"]}), tmp_path / "a.parquet")
    assert trainer(["check-data", "--source", str(tmp_path / "a.parquet")]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert "--label is unset" in first
    assert "no column that could be a feature" in second


def test_a_few_rows_of_numbers_train_without_tables(tmp_path):
    """There are too few for buckets, the only features of numbers that have tables."""
    random = np.random.default_rng(0)
    columns = {"clicked": random.permutation(30) % 2, "price": random.normal(size=30), "age": random.normal(size=30)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    tree = written(tmp_path, tmp_path / "rows.parquet")
    assert (tree["data"].get("sparse", {}), [*tree["data"]["dense"]]) == ({}, ["price", "age"])
    words = ["--out", str(tmp_path / "run"), "--train.epochs", "1", "--report.tensorboard", "false"]
    assert trainer(["train", str(tmp_path / "first.toml"), *words]) == 0


def split_in_three(folder, columns, rows=3000):
    """Writes a data set to train on, to validate and to test."""
    table = pa.table(columns)
    for name, (first, stop) in {"train": (0, 0.6), "validation": (0.6, 0.8), "test": (0.8, 1)}.items():
        pq.write_table(table.slice(int(first * rows), int((stop - first) * rows)), folder / f"{name}.parquet")


def log_of_ratings(rows=3000):
    """Ratings that a film's quality decides, of users of whom later splits have others."""
    random = np.random.default_rng(0)
    film, quality = random.integers(0, 40, rows), random.normal(3, 1, 40)
    seconds = random.exponential(50, rows)
    rating = np.clip(np.rint(quality[film] + random.normal(0, 0.5, rows)), 1, 5).astype(int)
    return {
        "user_id": np.arange(rows) // 600 * 20 + random.integers(0, 20, rows),  # the next 600 rows are of 20 others
        "film_id": film,
        "film": [f"film {one}" for one in film],
        "genre": [f"genre {one % 5}" for one in film],
        "seconds": seconds,
        "milliseconds": 1000 * seconds,
        "rating": rating,
        "price": 1000.0 * rating + random.normal(0, 100, rows),
        "mood": np.array(["bored", "fine", "glad"])[np.searchsorted([2, 3], rating)],
        "seen": np.ones(rows, int),
        "plays": random.poisson(3 * np.exp(0.7 * quality[film] - 2)),
    }


def trained(folder, label, *words):
    """Writes a first configuration for a label, trains it, and returns it with the metrics of the test split."""
    config, run = folder / f"{label}.toml", folder / f"run-{label}"
    source = ["--source", str(folder), "--label", label, "--write-config", str(config), *words]
    assert trainer(["check-data", *source]) == 0
    assert trainer(["train", str(config), "--out", str(run)]) == 0
    lines = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
    return tomllib.loads(config.read_text()), next(line for line in lines if line["split"] == "test")


def predicted(folder, label):
    """Returns the values that the best checkpoint of a trained label predicts for the test split, and its rows."""
    words = ["--out", str(folder / f"run-{label}"), "--checkpoint", "best", "--to", str(folder / f"parts-{label}")]
    assert trainer(["predict", str(folder / f"{label}.toml"), *words, "--source", str(folder / "test.parquet")]) == 0
    rows = read(folder / f"parts-{label}")
    return rows[f"{label}_value"].to_numpy().astype(float), rows


@pytest.fixture
def ratings(tmp_path):
    """The folder of a log of ratings, divided into splits."""
    (tmp_path / "log").mkdir()
    split_in_three(tmp_path / "log", log_of_ratings())
    return tmp_path / "log"


@pytest.mark.more("counts and sets of others train to their end, too")
@pytest.mark.slow
def test_values_are_learned_in_their_unit_and_the_best_checkpoint_is_judged(ratings):
    tree, test = trained(ratings, "rating", "--task", "values")
    assert tree["data"]["numeric_labels"] == ["rating"]
    assert tree["tasks"]["rating"]["loss"] == "squared"
    assert test["rmse"] < 0.8  # the noise is .5, the spread about 1
    assert tree["evaluate"] == {"every_steps": 20, "final": "best"}
    assert tree["train"]["stop_early"]["metric"] == tree["checkpoint"]["keep"]["best"] == "rmse"
    assert tree["checkpoint"]["every_steps"] == 20
    assert tree["optimizer"]["ema"] == {"decay": 0.975, "tables": True}
    penalties = [tree["optimizer"][part]["weight_decay"] for part in ("sparse", "dense")]
    assert penalties == [0.0001667] * 2  # 0.3 / 1,800 rows
    values, rows = predicted(ratings, "rating")
    assert test["rmse"] == pytest.approx(np.sqrt(np.mean((values - rows["rating"].to_numpy()) ** 2)), rel=1e-5)


@pytest.mark.more("a set of others trains to its end, too")
@pytest.mark.slow
def test_counts_are_learned_as_such_and_answered_as_counts(ratings):
    tree, test = trained(ratings, "plays")
    assert tree["data"]["numeric_labels"] == ["plays"]
    assert tree["tasks"]["plays"]["loss"] == "poisson"
    assert tree["train"]["stop_early"]["metric"] == "poisson_deviance"
    values, rows = predicted(ratings, "plays")
    plays = rows["plays"].to_numpy()
    assert test["poisson_deviance"] == pytest.approx(mean_poisson_deviance(plays, values), rel=1e-5)
    assert test["poisson_deviance"] < 0.7 * mean_poisson_deviance(plays, np.full(len(plays), plays.mean()))
    assert test["calibration"] == pytest.approx(values.sum() / plays.sum(), rel=1e-5)
    assert 0.9 < test["calibration"] < 1.1
    words = ["--out", str(ratings / "run-plays"), "--checkpoint", "best", "--to", str(ratings / "exports")]
    assert trainer(["export", str(ratings / "plays.toml"), *words]) == 0
    model = load(next((ratings / "exports").glob("step-*")))
    answers = model({name: rows[name].to_pylist() for name in {one["name"] for one in model.signature["columns"]}})
    np.testing.assert_allclose(answers["plays_value"].numpy(), values, rtol=1e-5)


@pytest.mark.more("counts, items and the tutorial train to their end, too")
@pytest.mark.slow
def test_text_becomes_classes(ratings):
    tree, test = trained(ratings, "mood")
    assert tree["data"]["classes"] == {"mood": ["bored", "fine", "glad"]}
    assert tree["tasks"]["mood"]["loss"] == "softmax"
    assert test["accuracy"] > 0.6
    page = ["--page", str(ratings / "mood.html"), "--time", "seconds", "--strict", "True"]
    assert trainer(["check-data", str(ratings / "mood.toml"), *page]) == 0
    test = pq.read_table(ratings / "test.parquet")
    pq.write_table(test.drop_columns(["mood"]), ratings / "unknown.parquet")
    words = ["--out", str(ratings / "run-mood"), "--source", str(ratings / "unknown.parquet")]
    assert trainer(["predict", str(ratings / "mood.toml"), *words, "--to", str(ratings / "parts")]) == 0


@pytest.mark.more("a set of others trains to its end, too")
@pytest.mark.slow
def test_items_are_found_where_every_label_is_1(ratings):
    tree, test = trained(ratings, "seen", "--strict", "True")
    assert tree["model"]["name"] == "two_tower"
    assert tree["model"]["item_features"] == ["film_id", "genre"]
    assert tree["tasks"]["seen"]["loss"] == "sampled_softmax"
    items = pq.read_table(ratings / "seen-items.parquet")
    assert items.num_rows == 40
    assert sum(items["train_rows"].to_pylist()) == 1800
    assert test["recall@50"] == 1.0  # of forty


def test_columns_that_teach_nothing_are_left_out_with_the_reason(ratings, capsys):
    config = ratings / "first.toml"
    source = ["--source", str(ratings), "--label", "price", "--write-config", str(config)]
    assert trainer(["check-data", *source]) == 0
    said = capsys.readouterr().out
    for column, why in (
        ("user_id", "100 % of its ids in validation are not in train: nothing is learned of them"),
        ("film", "each of its ids goes with one of 'film_id'"),
        ("milliseconds", "it is 'seconds' in another unit"),
    ):
        assert f"  {column}: {why}" in said
        assert f'#   "{column}": {why}' in config.read_text()
    assert tomllib.loads(config.read_text())["data"]["groups"] == ["user_id"]


def test_integers_are_ids_if_their_order_tells_less(tmp_path):
    random = np.random.default_rng(0)
    slot, level = random.integers(0, 100, 20_000), random.integers(0, 100, 20_000)
    chance = 0.2 + 0.3 * random.integers(0, 2, 100)[slot] + 0.003 * level
    table = {"slot": slot, "level": level, "clicked": (random.random(20_000) < chance).astype(int)}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    data = written(tmp_path, tmp_path / "a.parquet")["data"]
    assert (data["dense"].keys(), data["sparse"].keys()) == ({"level"}, {"slot", "level_bucket"})


def test_a_task_that_does_not_suit_the_label_is_refused_in_one_line(ratings, capsys):
    check = ["check-data", "--source", str(ratings), "--label"]
    for words, said in (
        (["mood", "--task", "values"], "--task is 'values', but 'mood' has 3 different texts; use classes"),
        (["price", "--task", "binary"], "--task is 'binary', but 'price' has numbers from"),
        (["mood", "--task", "valeus"], "--task is 'valeus'; did you mean 'values'?"),
    ):
        assert trainer([*check, *words]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("label", "said"),
    [
        (
            pa.array([True, None, False, True] * 50),
            "which has 50 nulls in 200 rows; leave these rows out, or write what they mean",
        ),
        (pa.array([1.0, 0.0, 0.0, *[None] * 1, *[1.0] * 196]), "which has 1 null in 200 rows; leave these rows out"),
        (pa.array(["no"] * 200), "which has 1 different text; name a column of 2 to 1,000 different texts"),
        (pa.array([2] * 200), "which is always 2: there is nothing to learn; name another column"),
        (pa.array([None] * 200, pa.bool_()), "which has no value; name another column"),
    ],
)
def test_a_label_that_is_none_is_refused_for_what_it_is(label, said, tmp_path, capsys):
    pq.write_table(pa.table({"clicked": label, "item": [n % 5 for n in range(200)]}), tmp_path / "a.parquet")
    for words in (["--label", "clicked"], []):
        assert trainer(["check-data", "--source", str(tmp_path / "a.parquet"), *words]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"'clicked'{',' if words else ' is named like one,'} {said}" in error


@pytest.mark.parametrize("label", [["True", "False"] * 100, [2, 1] * 100])
def test_two_values_are_0_and_1_in_their_order(label, tmp_path):
    pq.write_table(pa.table({"clicked": label, "item": [n % 5 for n in range(200)]}), tmp_path / "a.parquet")
    data = written(tmp_path, tmp_path / "a.parquet")["data"]
    assert data["classes"] == {"clicked": sorted({*label})}
    assert "numeric_labels" not in data
