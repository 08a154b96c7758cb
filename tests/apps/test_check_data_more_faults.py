"""Faults that lie in texts, times and rows beside each other: planted in clean data, found, each as itself."""

import datetime

import numpy as np
import pyarrow as pa
import pytest
from checked_data import clean_data
from command import write_config
from test_check_data import check, faults

from trainer.__main__ import main as trainer


def with_dates(made, of_row=lambda n: n // 60):
    """Makes `when` a time, with 60 rows of each day from 2024-02-01 on; splits follow each other."""
    for split in made.splits:
        for columns in made.columns(split):
            days = [of_row(n) for n in columns["when"].to_pylist()]
            first = datetime.datetime(2024, 2, 1)
            times = [first + datetime.timedelta(days=day, seconds=n) for n, day in enumerate(days)]
            columns["when"] = pa.array(times, pa.timestamp("us"))


def composed_and_decomposed(made):
    made.change("city", lambda city, _: np.where(city == "city 7", ["Se\u0301te", "S\u00e9te"] * 500, city))


def cyrillic(made):
    made.change("city", lambda city, _: np.where(city == "city 7", ["Paris", "P\u0430ris"] * 500, city))


def blanks(made):
    made.change("city", lambda city, _: np.where(np.arange(len(city)) % 50 == 7, city + " ", city))


def full_width(made):
    made.change("city", lambda city, _: np.where(city == "city 7", "\uff43\uff49\uff54\uff59 8", city))


def wrong_encoding(made):
    made.change("city", lambda city, _: np.where(city == "city 7", "S\u00e9te".encode().decode("latin-1"), city))


def replaced_characters(made):
    made.change("city", lambda city, _: np.where(city == "city 7", "S\ufffdte", city))


def null_as_text(made):
    made.change("city", lambda city, _: np.where(np.arange(len(city)) % 20 == 3, "NULL", city))


def empty_text(made):
    made.change("city", lambda city, _: np.where(np.arange(len(city)) % 20 == 3, "", city))


def numbers_as_text(made):
    for split in made.splits:
        made.change("city", lambda city, _: [f"{int(one[5:]) / 4:.2f}" for one in city], split)


def wrapped_ids(made):
    made.data["sparse"]["item"] = {"rows": 4096, "ids": "hash"}
    for split in made.splits:
        made.change("item", lambda item, _: (item * 15_000_000).astype(np.int64).astype(np.int32), split)


def same_column(made):
    made.data["dense"]["cost"] = {}
    for split in made.splits:
        for columns in made.columns(split):
            columns["cost"] = columns["price"]


def same_ids(made):
    made.data["sparse"]["thing"] = {"rows": 200}
    for split in made.splits:
        for columns in made.columns(split):
            columns["thing"] = columns["item"]


def logged_twice(made):
    for columns in made.columns():
        for name, column in columns.items():
            if name != "when":
                columns[name] = pa.concat_arrays([column[:-50], column[:50]])


def users_in_two_splits(made):
    made.data["groups"] = ["user"]
    for number, split in enumerate(made.splits):
        for columns in made.columns(split):
            rows = len(columns["when"])
            columns["user"] = pa.array(1000 * number + np.arange(rows) % 400)
    made.change("user", lambda user, _: np.where(user % 100 == 7, 7, user), "validation")


def another_unit(made):
    columns = made.splits["train"][3]
    columns["price"] = pa.array(100 * columns["price"].to_numpy() + 200)


def days_from_half_way_on(made):
    for columns in made.splits["train"][2:]:
        columns["age"] = pa.array([None if age is None else 365 * age for age in columns["age"].to_pylist()])


def leap_day(made):
    with_dates(made, lambda n: n // 60 + (n // 60 >= 28))


def lost_days(made):
    with_dates(made, lambda n: n // 60 + 2 * (n // 60 >= 40))


def times_of_1970(made):
    with_dates(made)
    for columns in made.columns():
        times = columns["when"].to_pylist()
        columns["when"] = pa.array(
            [datetime.datetime(1970, 1, 1) if n % 100 == 9 else one for n, one in enumerate(times)]
        )


def time_zones(made):
    with_dates(made)
    columns = made.splits["train"][2]
    columns["when"] = columns["when"].cast(pa.timestamp("us", "Europe/Berlin"))


def young_labels(made):
    with_dates(made)
    columns = made.splits["train"][3]
    label = columns["label"].to_numpy().copy()
    label[-200:] *= np.arange(200) % 5 == 0
    columns["label"] = pa.array(label)


FAULTS = {
    composed_and_decomposed: ("warning", "look-alikes", "city", "train"),
    cyrillic: ("warning", "look-alikes", "city", "train"),
    blanks: ("warning", "look-alikes", "city", "train"),
    full_width: ("warning", "look-alikes", "city", "train"),
    wrong_encoding: ("warning", "broken text", "city", "train"),
    replaced_characters: ("warning", "broken text", "city", "train"),
    null_as_text: ("warning", "null as text", "city", "train"),
    empty_text: ("warning", "null as text", "city", "train"),
    numbers_as_text: ("warning", "numbers as text", "city", "train"),
    wrapped_ids: ("warning", "wrapped ids", "item", "train"),
    same_column: ("warning", "same column", "cost", "train"),
    same_ids: ("warning", "same column", "thing", "train"),
    logged_twice: ("warning", "near copies", "", "train"),
    users_in_two_splits: ("warning", "users in two splits", "user", "validation"),
    another_unit: ("warning", "changed meaning", "price", "train"),
    days_from_half_way_on: ("warning", "changed meaning", "age", "train"),
    leap_day: ("warning", "missing days", "when", "train"),
    lost_days: ("warning", "missing days", "when", "train"),
    times_of_1970: ("warning", "epoch", "when", "train"),
    time_zones: ("warning", "time zones", "when", "part-2.parquet"),
    young_labels: ("warning", "young labels", "label", "train"),
}


# Other splits are not like a split that changes half-way.
FOLLOWS = {
    plant: {("warning", "shift", FAULTS[plant][2], split) for split in ("validation", "test")}
    for plant in (another_unit, days_from_half_way_on)
} | {young_labels: {("warning", "label rate over time", "label", "train")}}


@pytest.mark.sample(8)
@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_found_and_no_other(plant, tmp_path):
    made = clean_data()
    plant(made)
    words = ("--time", "when") if plant in (logged_twice, young_labels) or FAULTS[plant][2] == "when" else ()
    found = faults(check(tmp_path, made.write(tmp_path / "data"), *words))
    assert found - FOLLOWS.get(plant, set()) == {FAULTS[plant]}


def test_clean_times_have_no_fault(tmp_path):
    made = clean_data()
    with_dates(made)
    assert faults(check(tmp_path, made.write(tmp_path / "data"), "--time", "when")) == set()


def test_a_check_of_ones_own_stands_beside_the_others(tmp_path, monkeypatch, capsys):
    (tmp_path / "ours.py").write_text(
        "from torchx_recsys.apps.check_data.finding import Finding\n"
        "def old(checked):\n"
        "    highest = checked.profiles['age'].first.tally('age').maximum\n"
        "    if highest > 60:\n"
        "        yield Finding('error', 'too old', 'train', 'age', f'an age of {highest:.0f}', 'ask the customer')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tree = clean_data().write(tmp_path / "data")
    found = faults(check(tmp_path, tree, "--checks", "ours:old"))
    assert found == {("error", "too old", "age", "train")}
    file = str(write_config(tmp_path / "strict.toml", tree))
    assert trainer(["check-data", file, "--checks", "ours:old", "--strict", "True"]) == 2
    assert "first train, age: too old, an age of " in capsys.readouterr().err
    assert trainer(["check-data", file, "--checks", "ours:young"]) == 2
    assert "--checks is 'ours:young', which cannot be imported: " in capsys.readouterr().err
