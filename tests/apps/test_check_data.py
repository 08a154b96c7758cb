"""Faults that are planted in clean data are found, each as itself, and clean data has none."""

import json
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from checked_data import clean_data
from command import write_config
from jobs import config, write_rows

from torchx_recsys.apps.datasets.movielens import movielens
from torchx_recsys.apps.datasets.synthetic import synthetic
from trainer.__main__ import main as trainer
from trainer.config.root import READY_MADE
from trainer.core.arrays import mix
from trainer.rules.hashing import hash_text


def check(folder, tree, *words):
    """Returns the report of a check as a tree."""
    file, out = write_config(folder / "config.toml", tree), folder / "report.json"
    assert trainer(["check-data", str(file), "--json", str(out), "--overwrite", "True", *words]) == 0
    return json.loads(out.read_text())


def faults(report):
    return {
        (one["severity"], one["check"], one["column"], one["where"].rpartition("/")[2])
        for one in report["findings"]
        if one["severity"] != "note"
    }


def outside(made):
    made.change("item", lambda item, _: np.where(np.arange(len(item)) % 100 == 7, 1234, item))


def all_null(made):
    for split in made.splits:
        made.change("age", lambda age, _: np.full(len(age), None, dtype=object), split)
        for columns in made.columns(split):
            columns["age"] = columns["age"].cast("float64")


def mostly_null(made):
    made.change("city", lambda city, _: [word if n % 20 == 0 else None for n, word in enumerate(city)])


def constant(made):
    made.change("price", lambda price, _: np.full(len(price), 1.5))


def infinite(made):
    made.change("price", lambda price, _: np.where(np.arange(len(price)) == 5, -np.inf, price), "validation")


def not_a_number(made):
    made.change("price", lambda price, _: np.where(np.arange(len(price)) == 5, np.nan, price), "test")


def beyond_float32(made):
    made.change("price", lambda price, _: np.where(np.arange(len(price)) == 5, 1e39, price))


def huge(made):
    made.change("price", lambda price, _: np.where(np.arange(len(price)) == 5, -3e7, price))


def refused_by_transform(made):
    made.data["dense"]["price"] = {"transform": "log1p"}
    for split in made.splits:
        made.change("price", lambda price, _: np.abs(price), split)
    made.change("price", lambda price, _: np.where(np.arange(len(price)) == 5, -2.0, price), "test")


def label_range(made):
    made.change("label", lambda label, _: 2 * label, "validation")


def label_of_one_class(made):
    made.change("label", lambda label, _: np.ones(len(label)), "test")


def label_null(made):
    made.change("label", lambda label, _: [None if n == 3 else value for n, value in enumerate(label)])


def label_rate_of_a_file(made):
    label = np.zeros(len(made.splits["train"][2]["label"]), np.float32)
    label[::10] = 1
    made.splits["train"][2]["label"] = pa.array(label)


def duplicates(made):
    for columns in made.columns():
        for name, column in columns.items():
            columns[name] = pa.concat_arrays([column[:-50], column[:50]])


def rows_in_two_splits(made):
    for name, column in made.splits["validation"][0].items():
        made.splits["validation"][0][name] = pa.concat_arrays([column[:-80], made.splits["train"][1][name][:80]])


def leak_by_a_number(made):
    for split in made.splits:
        made.change("price", lambda price, columns: price / 10 + columns["label"].to_numpy(), split)


def leak_by_ids(made):
    for split in made.splits:
        made.change("item", lambda item, columns: 2 * (item % 90) + columns["label"].to_numpy().astype(int), split)


def leak_by_nulls(made):
    for split in made.splits:
        made.change("price", lambda price, columns: np.where(columns["label"].to_numpy() > 0, price, None), split)
        for columns in made.columns(split):
            columns["price"] = columns["price"].cast("float64")


def deciding_value(made):
    made.change(
        "item", lambda item, columns: np.where((columns["label"].to_numpy() == 1) & (item % 4 == 1), 199, item % 199)
    )


def shift(made):
    made.change("price", lambda price, _: 100 * price + 50, "validation")


def whole_prices(made):
    """Makes prices integers, but in one split floating-point numbers with the same values."""
    for split in made.splits:
        dtype = float if split == "validation" else int
        made.change("price", lambda price, _, dtype=dtype: np.round(10 * price).astype(dtype), split)


def shift_of_another_type(made):
    whole_prices(made)
    shift(made)


def rows_of_another_type_in_two_splits(made):
    rows_in_two_splits(made)
    whole_prices(made)


def unseen_ids(made):
    made.change("city", lambda city, _: [f"town of {word}" for word in city], "test")


def uneven_files(made):
    first, second, *_ = made.splits["train"]
    parts = [{name: column[20 * n : 20 * n + 20] for name, column in second.items()} for n in range(6)]
    made.splits["train"] = [first, *parts]


def empty_file(made):
    made.splits["train"][1] = {name: column[:0] for name, column in made.splits["train"][1].items()}


def large_row_groups(made):
    made.data["shuffle_window_rows"] = 200


def small_row_groups(made):
    made.row_group = 20


def other_type(made):
    columns = made.splits["train"][3]
    columns["price"] = pa.array([str(value) for value in columns["price"].to_pylist()])


def missing_column(made):
    del made.splits["test"][0]["item"]


def refused_type(made):
    for split in made.splits:
        for columns in made.columns(split):
            columns["item"] = pa.array([str(value) for value in columns["item"].to_pylist()])


def as_good_as_unique(made):
    made.data["sparse"]["city"]["rows"] = 100_000
    made.change("city", lambda city, columns: [f"{word} {n}" for word, n in zip(city, columns["when"], strict=True)])


def table_too_small(made):
    made.data["sparse"]["city"]["rows"] = 16


def wraps_around(made):
    made.data["sparse"]["tags"]["rows"] = 60


def negative_weight(made):
    made.change("importance", lambda weight, _: np.where(np.arange(len(weight)) == 9, -1.0, weight))


def zero_weights(made):
    made.change("importance", lambda weight, _: np.where(np.arange(len(weight)) % 3 == 0, weight, 0.0), "validation")


def null_weight(made):
    made.change("importance", lambda weight, _: [None if n == 3 else value for n, value in enumerate(weight)])


def negative_cost(made):
    made.data["even_steps"] = {"cost": made.data.pop("weight")}
    negative_weight(made)


def null_cost(made):
    made.data["balance"] = {"cost": made.data.pop("weight")}
    null_weight(made)


def all_zero_weights(made):
    made.change("importance", lambda weight, _: np.zeros(len(weight)))


FAULTS = {
    outside: ("error", "outside the table", "item", "train"),
    all_null: ("warning", "all null", "age", "train"),
    mostly_null: ("warning", "mostly null", "city", "train"),
    constant: ("warning", "constant", "price", "train"),
    infinite: ("error", "infinite", "price", "validation"),
    not_a_number: ("error", "not a number", "price", "test"),
    beyond_float32: ("error", "huge", "price", "train"),
    huge: ("warning", "huge", "price", "train"),
    refused_by_transform: ("error", "transform", "price", "test"),
    label_range: ("error", "label range", "label", "validation"),
    label_of_one_class: ("error", "label of one class", "label", "test"),
    label_null: ("error", "label null", "label", "train"),
    label_rate_of_a_file: ("warning", "label rate of files", "label", "part-2.parquet"),
    duplicates: ("warning", "duplicate rows", "", "train"),
    rows_in_two_splits: ("error", "rows in two splits", "", "validation"),
    leak_by_a_number: ("error", "leakage", "price", "train"),
    leak_by_ids: ("error", "leakage", "item", "train"),
    leak_by_nulls: ("error", "leakage", "price", "train"),
    deciding_value: ("warning", "leakage", "item", "train"),
    shift: ("warning", "shift", "price", "validation"),
    shift_of_another_type: ("warning", "shift", "price", "validation"),
    rows_of_another_type_in_two_splits: ("error", "rows in two splits", "", "validation"),
    unseen_ids: ("warning", "unseen ids", "city", "test"),
    uneven_files: ("warning", "uneven files", "", "part-0.parquet"),
    empty_file: ("warning", "empty file", "", "part-1.parquet"),
    large_row_groups: ("warning", "row groups too large", "", "part-0.parquet"),
    small_row_groups: ("warning", "row groups too small", "", "train"),
    other_type: ("error", "schema", "price", "part-3.parquet"),
    missing_column: ("error", "schema", "item", "part-0.parquet"),
    refused_type: ("error", "type", "", "train"),
    as_good_as_unique: ("warning", "as good as unique", "city", "train"),
    table_too_small: ("warning", "table too small", "city", "train"),
    wraps_around: ("warning", "wraps around", "tags", "train"),
    negative_weight: ("error", "weight negative", "importance", "train"),
    zero_weights: ("warning", "weight zero", "importance", "validation"),
    null_weight: ("error", "weight null", "importance", "train"),
    negative_cost: ("error", "cost negative", "importance", "train"),
    null_cost: ("error", "cost null", "importance", "train"),
    all_zero_weights: ("error", "weight zero", "importance", "train"),
}
FOLLOWS = {
    # Faults that come with others: a value that nothing comes near is also what makes the split another one, ...
    constant: {("warning", "shift", "price", "validation"), ("warning", "shift", "price", "test")},
    as_good_as_unique: {("warning", "unseen ids", "city", "validation"), ("warning", "unseen ids", "city", "test")},
    all_null: {("warning", "all null", "age", "validation"), ("warning", "all null", "age", "test")},
    refused_type: {("error", "type", "", "validation"), ("error", "type", "", "test")},
    wraps_around: {("warning", "wraps around", "tags", "validation"), ("warning", "wraps around", "tags", "test")},
}


@pytest.mark.few(5, "five stand for all")
@pytest.mark.sample(15)
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_no_other(plant, tmp_path, capsys):
    made = clean_data()
    plant(made)
    report = check(tmp_path, made.write(tmp_path / "data"))
    found = faults(report)
    assert FAULTS[plant] in found
    assert found - FOLLOWS.get(plant, set()) == {FAULTS[plant]}
    printed = capsys.readouterr().out
    assert FAULTS[plant][1] in printed
    assert f"{sum(one[0] == 'error' for one in found)} error" in printed


def test_a_label_rate_that_changes_with_time_is_found(tmp_path):
    made = clean_data()
    made.change("label", lambda label, columns: np.where(columns["when"].to_numpy() > 3600, 0, label))
    tree = made.write(tmp_path / "data")
    assert ("warning", "label rate over time", "label", "train") in faults(check(tmp_path, tree, "--time", "when"))


@pytest.mark.few(2, "two stand for all")
@pytest.mark.parametrize("seed", range(5))
def test_clean_data_has_no_fault(seed, tmp_path):
    tree = clean_data(seed).write(tmp_path / "data")
    for words in ((), ("--all", "True"), ("--rows", "2000"), ("--time", "when")):
        assert faults(check(tmp_path, tree, *words)) == set()


def test_features_that_are_made_of_columns_are_no_fault(tmp_path):
    made = clean_data()
    for split in made.splits:
        made.change("item", lambda item, _: item + 1, split)
        made.change("price", lambda price, _: np.where(np.arange(len(price)) == 3, np.inf, price), split)
    made.data["sparse"] |= {
        "item": {"rows": 200, "offset": -1},
        "old": {"rows": 4, "column": "age", "buckets": [20.0, 40.0, 60.0]},
        "pair": {"rows": 4096, "columns": ["item", "city"], "ids": "hash"},
        "age": {"rows": 3, "buckets": [30.0, 50.0]},
    }
    made.data["dense"] = {"price": {"clip": [-5.0, 5.0]}, "no_age": {"column": "age", "transform": "is_missing"}}
    assert faults(check(tmp_path, made.write(tmp_path / "data"))) == set()


def test_columns_of_the_path_are_those_of_files(tmp_path):
    tree, hive = clean_data().write(tmp_path / "data"), {}
    scheme = ds.partitioning(pa.schema([("city", pa.string())]), flavor="hive")
    for split in ("train", "validation", "test"):
        ds.write_dataset(
            pq.read_table(tree["data"][split][0]).sort_by("city"),
            tmp_path / "hive" / split,
            partitioning=scheme,
            format="parquet",
        )
        hive[split] = [str(tmp_path / "hive" / split)]
    flat, found = check(tmp_path, tree), check(tmp_path, tree | {"data": tree["data"] | hive})
    assert faults(found) == set()
    for name, exact in (("city", ("nulls", "distinct", "top")), ("tags", ("nulls", "distinct", "hotness"))):
        assert [found["columns"][name][one] for one in exact] == [flat["columns"][name][one] for one in exact]
    assert trainer(["check-data", "--source", str(tmp_path / "hive"), "--json", str(tmp_path / "hive.json")]) == 0
    guessed = json.loads((tmp_path / "hive.json").read_text())
    assert guessed["columns"]["city"]["as"] == "sparse"
    assert guessed["splits"].keys() == hive.keys()


@pytest.mark.more("clean data has none here")
def test_clean_data_of_other_tests_has_no_fault(tmp_path):
    tree = config(write_rows(tmp_path / "rows", [3000, 2000, 1000]), data__shuffle_window_rows=64)
    assert faults(check(tmp_path, tree)) == set()


@pytest.mark.more("clean random data has none, either")
def test_clean_movielens_and_synthetic_data_have_no_fault(tmp_path):
    movielens(str(tmp_path / "movielens"))  # pip has to download it
    small = {"validation_rows": 2000, "test_rows": 2000, "workers": 1}
    synthetic(str(tmp_path / "synthetic"), rows=20_000, files=2, null_rate=0.1, **small)
    for name in ("movielens", "synthetic"):
        folders = {split: [str(tmp_path / name / split)] for split in ("train", "validation", "test")}
        tree = tomllib.loads((READY_MADE / f"{name}.toml").read_text())
        assert faults(check(tmp_path, tree | {"data": tree["data"] | folders}, "--all", "True")) == set()


def test_implicit_feedback_has_no_error_where_items_are_compared(tmp_path):
    made, items = clean_data(), {"name": "two_tower", "embedding_dim": 8, "item_features": ["item"]}
    for label in (1.0, 0.0):
        for split in made.splits:
            made.change("label", lambda values, _, label=label: np.full(len(values), label), split)
        tree = made.write(tmp_path / f"data {label}") | {"model": items}
        for loss in ("in_batch_softmax", "binary"):
            tree["tasks"] = {"label": {"loss": loss}}
            tree["model"] = items if loss != "binary" else {"name": "wide_deep"}
            wrong = {one for one in faults(check(tmp_path, tree)) if one[1] == "label of one class"}
            assert len(wrong) == (0 if (label, loss) == (1.0, "in_batch_softmax") else 3)


@pytest.mark.more("clean MovieLens has no fault")
@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize("name", [f"movielens_next_{name}" for name in ("sasrec", "hstu", "recency", "mind")])
def test_ready_made_retrieval_is_strictly_clean(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    movielens("data/movielens")
    assert trainer(["check-data", name, "--strict", "True"]) == 0


def test_faults_of_rows_that_are_not_in_the_sample_are_found(tmp_path):
    made = clean_data()
    outside(made)
    infinite(made)
    report = check(tmp_path, made.write(tmp_path / "data"), "--rows", "50")
    assert report["splits"]["train"]["sample"] < 60
    assert faults(report) >= {FAULTS[outside], FAULTS[infinite]}


def test_a_report_of_a_sample_says_so(tmp_path, capsys):
    tree = clean_data().write(tmp_path / "data")
    words = "--rows sets its size"
    check(tmp_path, tree, "--all", "True")
    assert words not in capsys.readouterr().out
    check(tmp_path, tree, "--all", "True", "--rows", "2000", "--page", str(tmp_path / "page.html"))
    assert words in capsys.readouterr().out
    assert words in (tmp_path / "page.html").read_text()


def test_different_ids_are_counted_in_all_rows(tmp_path, capsys):
    made = clean_data()
    made.data["sparse"] |= {"when": {"rows": 20_000, "ids": "hash"}, "user": {"rows": 20_000, "ids": "hash"}}
    for split in made.splits:
        for columns in made.columns(split):
            columns["user"] = pa.array([f"user {time % 1000}" for time in columns["when"].to_pylist()])
    statistics, tree = tmp_path / "statistics.json", made.write(tmp_path / "data")
    report = check(tmp_path, tree, "--all", "True", "--rows", "500", "--statistics", str(statistics))
    when, user = report["columns"]["when"], report["columns"]["user"]
    assert (user["distinct"], user["distinct_is"], when["distinct_is"]) == (1000, "exact", "estimated")
    assert when["distinct"] == pytest.approx(4000, rel=0.1)
    unique = [one for one in report["findings"] if one["check"] == "as good as unique"]
    assert [(one["severity"], one["column"]) for one in unique] == [("warning", "when")]
    assert "1,000 different" in (printed := capsys.readouterr().out)
    assert f"about {when['distinct']:,} different" in printed
    found = json.loads(statistics.read_text())
    assert (found["rows"], found["features"]["user"]["distinct"]) == (4000, 1000)


def test_the_samples_that_training_sees_are_checked(tmp_path, capsys):
    made = clean_data()
    outside(made)
    made.change("importance", lambda weight, columns: np.where(columns["item"].to_numpy() == 1234, 0.5, weight))
    select = {"filter": [["importance", ">=", 1.0]], "keep_negatives": 0.5}
    tree = made.write(tmp_path / "data")
    assert FAULTS[outside] in faults(check(tmp_path, tree))
    report = check(tmp_path, tree | {"data": tree["data"] | {"select": select}})
    assert faults(report) == set()
    label = pq.read_table(tmp_path / "data" / "train", filters=[("importance", ">=", 1.0)])["label"].to_numpy()
    assert report["splits"]["train"]["read"] == pytest.approx(label.sum() + (label == 0).sum() / 2, abs=16)
    assert report["columns"]["item"]["maximum"] < 200
    assert "data.select: " in capsys.readouterr().out
    mixture = {"mixture": {f"{tmp_path}/data/train/part-{n}.parquet": 2.0 for n in range(4)}}
    report = check(tmp_path, tree | {"data": tree["data"] | {"select": mixture}})
    assert faults(report) == {FAULTS[outside]}
    assert report["splits"]["train"]["rows"] == 4000


def test_files_are_compared_by_what_their_values_are_to_training(tmp_path):
    made = clean_data()
    first, second, *_ = made.columns()
    first["city"] = pa.nulls(1000)
    second["price"] = pa.array(np.round(second["price"].to_numpy()).astype(np.int32))
    tree = made.write(tmp_path / "data")
    assert faults(check(tmp_path, tree)) == set()
    for columns in made.columns("validation"):
        columns["city"] = pa.array(np.arange(1000) % 40)
    assert ("error", "schema", "city", "part-0.parquet") in faults(check(tmp_path, made.write(tmp_path / "other")))


def test_ids_that_share_rows_are_noted_with_what_gives_each_its_own(tmp_path):
    made = clean_data()
    made.data["sparse"]["city"]["rows"] = 64
    report = check(tmp_path, made.write(tmp_path / "data"))
    (found,) = [one for one in report["findings"] if one["check"] == "shared rows"]
    places = mix(hash_text(pa.array([f"city {n}" for n in range(40)]))) % np.uint64(64)
    shared = sum(int((places == place).sum()) > 1 for place in places)
    assert found["found"] == f"{shared} of 40 different ids share their row by their hash"
    assert "make a vocabulary of it" in found["remedy"]
    rows = int(found["remedy"].rpartition(" ")[2])
    assert check(tmp_path, made.write(tmp_path / "again"), "--data.sparse.city.rows", str(rows))["findings"] == []


def test_strict_ends_with_one_line_that_names_the_worst(tmp_path, capsys):
    made = clean_data()
    file = write_config(tmp_path / "clean.toml", made.write(tmp_path / "clean"))
    assert trainer(["check-data", str(file), "--strict", "True"]) == 0
    outside(made)
    file = write_config(tmp_path / "wrong.toml", made.write(tmp_path / "wrong"))
    capsys.readouterr()
    assert trainer(["check-data", str(file), "--strict", "True"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert all(part in error for part in ("--strict", "item", "1234", "data.sparse.item.rows to 1235"))


def test_suggestions_are_better_than_what_is_there(tmp_path):
    made = clean_data()
    for split in made.splits:
        made.change("price", lambda price, _: np.exp(3 * price), split)
    made.data |= {"global_batch_size": 8192}
    made.data["sparse"]["city"]["rows"] = 8
    made.data["sparse"]["tags"]["hotness"] = 1.0
    tree = made.write(tmp_path / "data")
    report = check(tmp_path, tree)
    better = {one["key"]: one["value"] for one in report["suggestions"]}
    assert better["data.dense.price.transform"] == "log1p"
    assert better["data.sparse.city.rows"] >= 40
    assert better["data.sparse.tags.hotness"] == pytest.approx(2.0, abs=0.1)
    assert better["data.global_batch_size"] == 64
    words = [word for key, value in better.items() for word in (f"--{key}", str(value))]
    assert check(tmp_path, tree, *words)["suggestions"] == []


WRONG = [
    ((), "neither is given"),
    (("CONFIG", "--source", "x"), "both are given"),
    (("CONFIG", "--rows", "0"), "--rows is 0"),
    (("CONFIG", "--time", "whne"), "did you mean 'when'?"),
    (("CONFIG", "--label", "label"), "--label is set, and so is CONFIG"),
    (("CONFIG", "--page", ""), "--page is empty"),
    (("CONFIG", "--json", "/proc/nowhere/x.json"), "--json is '/proc/nowhere/x.json'"),
    (("CONFIG", "--data.train", "nowhere.parquet"), "no Parquet file at 'nowhere.parquet'"),
    (("CONFIG", "--strict", "yes"), "it must be true or false"),
    (("--source", "nowhere.parquet"), "--source: no Parquet file at 'nowhere.parquet'"),
    (("--source", "DATA", "--label", "labl"), "did you mean 'label'?"),
    (("--source", "DATA", "--label", "price", "--task", "binary"), "--task is 'binary', but 'price' "),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=lambda part: part[:30] if isinstance(part, str) else None)
def test_wrong_arguments_are_one_line(words, said, tmp_path, capsys):
    tree = clean_data().write(tmp_path / "data")
    places = {"CONFIG": str(write_config(tmp_path / "config.toml", tree)), "DATA": str(tmp_path / "data")}
    assert trainer(["check-data", *(places.get(word, word) for word in words)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
