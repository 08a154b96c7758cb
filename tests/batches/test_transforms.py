"""Every transform of features, from files to batches, against Python's own numbers, times and integers."""

import hashlib
import math
from bisect import bisect_right
from datetime import UTC, date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from jobs import config as plain_config
from jobs import launch, losses
from transformed import DENSE, EDGES, NOW, SPARSE, transformed_config, write_transformed

from trainer.__main__ import main as trainer
from trainer.batches.loader import Loader
from trainer.config.root import Config, load_config, to_toml
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

MASK = 2**64 - 1


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_transformed(tmp_path_factory.mktemp("data") / "train")


@pytest.fixture(scope="module")
def columns(data):
    """The columns of the file as Python's objects."""
    return pq.read_table(data / "part.parquet").to_pydict()


def batches_of(tree):
    config = Config.model_validate(tree).data
    files = find_files("data.train", config.train, config)
    lanes = Lanes(files.rows, 1, 100)
    return list(Loader(files, config, lanes, 0, 1, seed=0, shuffle=False).batches(0, lanes.steps))


@pytest.fixture(scope="module")
def batches(data):
    return batches_of(transformed_config(data))


def dense_of(batches, name):
    place = [*DENSE].index(name)
    return np.concatenate([batch.dense[:, place].numpy() for batch in batches])


def ids_of(batches, name):
    """The ids of each row."""
    bags = [batch.sparse[name] for batch in batches]
    return [ids.tolist() for bag in bags for ids in bag.values().split(bag.lengths().tolist())]


def mixed(value):
    """splitmix64 in Python's integers."""
    x = (value + 0x9E3779B97F4A7C15) & MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def key(value):
    if isinstance(value, str):
        return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
    return value & MASK


def hashed(value, rows, salt=0):
    return mixed((value & MASK) ^ (mixed(salt) if salt else 0)) % rows


def weekday(time):
    return time.astimezone(UTC).weekday()


def hour(time):
    return time.astimezone(UTC).hour


def age(day):
    return (date.fromisoformat(NOW) - day).days


def seconds_age(seconds):
    midnight = datetime.combine(date.fromisoformat(NOW), datetime.min.time(), UTC)
    return (midnight - datetime.fromtimestamp(seconds, UTC)).total_seconds() / 86400


def or_else(missing, function):
    return lambda value: missing if value is None else function(value)


EXPECTED_DENSE = {
    "price": ("price", lambda x: math.log((x or 0.0) + 3)),
    "price_clipped": ("price", lambda x: (min(max(70.0 if x is None else x, -1.5), 60.0) - 3.0) / 25.0),
    "price_log": ("price", lambda x: math.log1p(min(max(-4.0 if x is None else x, 0.0), 1e6)) - 1.0),
    "price_missing": ("price", lambda x: ((x is None) - 0.25) / 0.5),
    "word_missing": ("word", lambda x: float(x is None)),
    "ratio_missing": ("ratio", lambda x: float(x is None or math.isnan(x))),
    "hour": ("seen", lambda x: (or_else(-1, hour)(x) - 12) / 6),
    "weekday": ("seen", or_else(7, weekday)),
    "age": ("born", lambda x: min(max(or_else(-5, age)(x), 0), 20_000) / 5000),
    "idle": ("seconds", lambda x: (seconds_age(x) - 8000) / 5000),
}


@pytest.mark.parametrize("name", EXPECTED_DENSE)
def test_dense(batches, columns, name):
    column, function = EXPECTED_DENSE[name]
    expected = [function(value) for value in columns[column]]
    np.testing.assert_allclose(dense_of(batches, name), expected, rtol=5e-7, atol=5e-7)
    assert len({*expected}) > 1


def test_whole_values_are_exact(batches, columns):
    for name, function in {"weekday": or_else(7, weekday), "word_missing": lambda x: x is None}.items():
        assert dense_of(batches, name).tolist() == [function(x) for x in columns[EXPECTED_DENSE[name][0]]]


def crossed(*values):
    first, *others = map(key, values)
    for value in others:
        first = mixed(first) ^ value
    return first


EXPECTED_IDS = {
    "price_bucket": (["price"], lambda x: bisect_right(EDGES, x)),
    "seen_hour": (["seen"], hour),
    "seen_weekday": (["seen"], weekday),
    "seconds_hour": (["seconds"], lambda x: datetime.fromtimestamp(x, UTC).hour),
    "place": (["place"], lambda x: x - 1),
    "place_wrapped": (["place"], lambda x: (x + 1000) % 17),
    "user": (["user"], lambda x: hashed(x, 41)),
    "user_salted": (["user"], lambda x: hashed(x, 41, 7)),
    "user_shifted": (["user"], lambda x: hashed(x + 5, 31)),
    "word_salted": (["word"], lambda x: hashed(key(x), 23, 1234567890123)),
    "user_word": (["user", "word"], lambda *x: hashed(crossed(*x), 97)),
    "word_user": (["word", "user"], lambda *x: hashed(crossed(*x), 97)),
    "three": (["word", "place", "wide"], lambda *x: hashed(crossed(*x), 89, 3)),
}


@pytest.mark.parametrize("name", EXPECTED_IDS)
def test_single_ids(batches, columns, name):
    used, function = EXPECTED_IDS[name]
    rows = zip(*(columns[column] for column in used), strict=True)
    expected = [[] if None in row else [function(*row)] for row in rows]
    assert ids_of(batches, name) == expected
    assert len({*map(tuple, expected)}) >= 5


EXPECTED_LISTS = {
    "last": ("tags", lambda ids: ids[-2:]),
    "first": ("tags", lambda ids: ids[:2]),
    "all_tags": ("tags", lambda ids: [id + 5 for id in ids]),
    "terms": ("terms", lambda ids: [hashed(key(id), 29, 9) for id in ids[:3]]),
}


@pytest.mark.parametrize("name", EXPECTED_LISTS)
def test_lists(batches, columns, name):
    column, function = EXPECTED_LISTS[name]
    expected = [function([id for id in ids or [] if id is not None]) for ids in columns[column]]
    assert ids_of(batches, name) == expected


def test_every_feature_is_compared():
    assert {*EXPECTED_DENSE} == {*DENSE}
    assert {*EXPECTED_IDS, *EXPECTED_LISTS} == {*SPARSE}


def test_a_cross_depends_on_the_order_of_its_columns_and_a_salt_makes_another_hash(batches):
    for one, other in (("user_word", "word_user"), ("user", "user_salted")):
        pairs = [*zip(ids_of(batches, one), ids_of(batches, other), strict=True)]
        assert sum(a == b for a, b in pairs if a) < 0.2 * len(pairs)


def test_a_configuration_with_a_date_of_toml_is_kept_as_it_is(data, tmp_path):
    written = Config.model_validate(transformed_config(data))
    (tmp_path / "config.toml").write_text(to_toml(written).replace(f'now = "{NOW}"', f"now = {NOW}"))
    assert load_config(str(tmp_path / "config.toml")) == written


def test_trains_alike_on_two_ranks(data, tmp_path):
    tree = transformed_config(data, train__steps=4)
    launch([{"config": tree, "out": str(tmp_path / "one")}], 1, tmp_path)
    launch([{"config": tree, "out": str(tmp_path / "two")}], 2, tmp_path)
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-6)


WRONG_KEYS = {
    "clip backwards": ("dense.x", {"clip": [3.0, 1.0]}, "data.dense.x.clip is [3.0, 1.0]; it must be two numbers"),
    "clip of one": ("dense.x", {"clip": [3.0]}, "data.dense.x.clip is [3.0]; it must be two numbers"),
    "clip of nulls": ("dense.x", {"transform": "is_missing", "clip": [0.0, 1.0]}, "which does not use it"),
    "missing of nulls": ("dense.x", {"transform": "is_missing", "missing": 1.0}, "data.dense.x.missing is 1.0, but"),
    "age without now": (
        "dense.x",
        {"transform": "age"},
        "data.dense.x.now is None and data.dense.x.transform",
    ),
    "now without age": ("dense.x", {"now": NOW}, "'age' needs a now, and nothing else does"),
    "no day": ("dense.x", {"transform": "age", "now": "today"}, "data.dense.x.now is 'today'; it must be a day"),
    "falling edges": (
        "sparse.x",
        {"buckets": [1.0, 1.0]},
        "x.buckets is [1.0, 1.0]; its edges must ascend",
    ),
    "few rows": ("sparse.x", {"buckets": [1.0, 2.0], "rows": 2}, "rows is 2, but data.sparse.x.buckets makes 3 ids"),
    "few hours": ("sparse.x", {"transform": "hour", "rows": 23}, "data.sparse.x.transform makes 24 ids; set rows"),
    "hashed buckets": ("sparse.x", {"buckets": [1.0], "ids": "hash"}, "makes ids that are rows already"),
    "columns of one": ("sparse.x", {"columns": ["a"], "ids": "hash"}, "it must be two or three columns"),
    "a column twice": ("sparse.x", {"columns": ["a", "a"], "ids": "hash"}, "data.sparse.x.columns is ['a', 'a']"),
    "a cross of rows": ("sparse.x", {"columns": ["a", "b"]}, "data.sparse.x.ids is 'error'; a cross needs 'hash'"),
    "column and columns": ("sparse.x", {"column": "a", "columns": ["a", "b"], "ids": "hash"}, "set one of them"),
    "two ways": (
        "sparse.x",
        {"buckets": [1.0], "offset": 1},
        "x.buckets and data.sparse.x.offset are both",
    ),
    "salt without hash": ("sparse.x", {"salt": 3}, "data.sparse.x.salt is 3, but data.sparse.x.ids is 'error'"),
    "negative salt": ("sparse.x", {"salt": -1, "ids": "hash"}, "data.sparse.x.salt is -1: input should be greater"),
    "offset of managed ids": ("sparse.x", {"offset": 1, "ids": "managed"}, "which takes ids as they are"),
    "first of all": (
        "sparse.x",
        {"keep": "first"},
        "x.keep is 'first', but data.sparse.x.max_ids is unset",
    ),
    "some of one hour": (
        "sparse.x",
        {"transform": "hour", "max_ids": 1},
        "data.sparse.x.max_ids is 1, which cuts lists, but data.sparse.x.transform makes one id; leave it out",
    ),
    "label as a column": ("dense.x", {"column": "label"}, "data.labels names 'label', which data.dense.x names too"),
}


def fails(tree, tmp_path, capfd):
    """The line that training ends with."""
    (tmp_path / "config.toml").write_text(tomli_w.dumps(tree))
    assert trainer(["train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "out")]) == 2
    lines = capfd.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert not any("Traceback" in line for line in lines)
    return lines[-1]


@pytest.mark.parametrize(("feature", "keys", "words"), WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_wrong_keys(data, tmp_path, capfd, feature, keys, words):
    kind, name = feature.split(".")
    tree = plain_config(data)
    tree["data"] |= {"dense": {}, "sparse": {"place": {"rows": 50}}}
    tree["data"][kind][name] = ({"rows": 50} if kind == "sparse" else {}) | keys
    assert words in fails(tree, tmp_path, capfd)


WRONG_COLUMNS = {
    "no such column": ("dense", {"column": "prize"}, "part.parquet: no column 'prize'; the file has: price, seen"),
    "no such columns": ("sparse", {"columns": ["user", "wort"], "ids": "hash"}, "no column 'wort'"),
    "buckets of strings": (
        "sparse",
        {"column": "word", "buckets": [1.0]},
        "column 'word' is of type string; it",
    ),
    "hour of a string": (
        "sparse",
        {"column": "word", "transform": "hour"},
        "it takes timestamps, or integers: ",
    ),
    "hour of a day": ("dense", {"column": "born", "transform": "hour"}, "column 'born' is of type date32[day], but"),
    "hour of a price": ("dense", {"column": "price", "transform": "hour"}, "column 'price' is of type double"),
    "hour of a number": (
        "dense",
        {"column": "place", "transform": "hour"},
        "is no time in seconds since 1970, ",
    ),
    "cross of a list": ("sparse", {"columns": ["user", "tags"], "ids": "hash"}, "data.sparse.x.columns crosses single"),
    "offset of strings": ("sparse", {"column": "word", "offset": 1, "ids": "hash"}, "data.sparse.x.offset is 1, which"),
    "some of a single id": (
        "sparse",
        {"column": "place", "max_ids": 2},
        "data.sparse.x.max_ids is 2, which cuts lists",
    ),
    "ids below": ("sparse", {"column": "place", "offset": -5}, "(with the offset -5) is outside [0, 50)"),
    "log of nothing": ("dense", {"column": "price", "transform": "log1p", "clip": [-9.0, 9.0]}, "has no finite value"),
}


@pytest.mark.parametrize(("kind", "keys", "words"), WRONG_COLUMNS.values(), ids=WRONG_COLUMNS)
def test_wrong_columns(data, kind, keys, words):
    tree = plain_config(data)
    tree["data"] |= {"dense": {}, "sparse": {"place": {"rows": 50}}}
    tree["data"][kind]["x"] = ({"rows": 50} if kind == "sparse" else {}) | keys
    with pytest.raises(InputError) as raised:
        batches_of(tree)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_nan_is_in_no_bucket(tmp_path):
    pq.write_table(pa.table({"x": [1.0, math.nan], "label": [0.0, 1.0]}), tmp_path / "part.parquet")
    tree = plain_config(tmp_path)
    tree["data"] |= {"dense": {}, "sparse": {"x": {"rows": 2, "buckets": [0.0]}}}
    with pytest.raises(InputError, match="row 1, column 'x': nan is in no bucket; write a null where"):
        batches_of(tree)


def test_columns_of_text_have_the_types_that_transforms_take(tmp_path):
    lines = ["price,seconds,user,label", "1.5,1700000000,7,1", ",1700003600,8,0"]
    (tmp_path / "part.csv").write_text("\n".join(lines) + "\n")
    tree = plain_config(tmp_path, data__reader="csv")
    tree["data"] |= {
        "dense": {"hour": {"column": "seconds", "transform": "hour"}, "x": {"column": "price", "missing": 2.0}},
        "sparse": {
            "band": {"column": "price", "buckets": [0.0], "rows": 2},
            "both": {"columns": ["user", "seconds"], "ids": "hash", "rows": 50},
        },
    }
    (batch,) = batches_of(tree)
    assert batch.dense[:2].tolist() == [[22.0, 1.5], [23.0, 2.0]]
    assert ids_of([batch], "band")[:2] == [[1], []]
    assert ids_of([batch], "both")[:2] == [[hashed(crossed(7, 1700000000), 50)], [hashed(crossed(8, 1700003600), 50)]]
