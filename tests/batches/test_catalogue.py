"""The catalogue: its rows as those of samples, and negatives that depend on nothing but lane and step."""

from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainer.batches.catalogue import read_catalogue
from trainer.batches.loader import Loader
from trainer.batches.negatives import Negatives
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.columns import RecordedTypes
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.data.files import DataFile

FEATURES = ["item", "tags", "price"]
ITEMS = {
    "item": [7, 3, 9, 4],
    "tags": [[1, 2], [], None, [5]],
    "price": [1.0, 2.0, None, 4.0],
    "count": [5, 0, 3, 2],
}
SAMPLES, DRAWN, HARD = 100, 6, 2
SAMPLES_FILE = DataFile("", 0, (), pa.schema([]), ("tags", "history"))


def write_items(folder, **columns):
    table = pa.table({"tags": pa.array(ITEMS["tags"], pa.list_(pa.int32())), **(ITEMS | columns)})
    pq.write_table(table, folder / "items.parquet", row_group_size=3)
    return str(folder / "items.parquet")


def data(folder, **catalogue):
    return DataConfig.model_validate(
        {
            "train": [str(folder / "train.parquet")],
            "dense": {"age": {}, "price": {"missing": 8.0}},
            "sparse": {"user": {"rows": 10}, "item": {"rows": 10}, "tags": {"rows": 9}, "history": {"rows": 10}},
            "groups": ["user", "item"],
            "catalogue": {"items": [str(folder / "items.parquet")], "id": "item", "weight": "count"} | catalogue,
        }
    )


@pytest.fixture
def folder(tmp_path):
    write_items(tmp_path)
    random = np.random.default_rng(0)
    item = random.choice([3, 4, 7, 9], SAMPLES)
    columns = {
        "age": random.random(SAMPLES),
        "price": random.random(SAMPLES),
        "user": random.integers(0, 10, SAMPLES),
        "item": item,
        "tags": pa.array([[1]] * SAMPLES, pa.list_(pa.int32())),
        "history": pa.array([[3, 4]] * SAMPLES, pa.list_(pa.int32())),
        "avoided": pa.array([[9, 7, 3][: n % 4] if n % 5 else None for n in range(SAMPLES)]),
        "label": np.ones(SAMPLES),
    }
    pq.write_table(pa.table(columns), tmp_path / "train.parquet", row_group_size=32)
    return tmp_path


def test_the_rows_of_items_are_those_of_samples(folder):
    """By rising id; what is of the query is empty, and so is all of the last row, which is no item."""
    catalogue = read_catalogue(data(folder), FEATURES, SAMPLES_FILE)
    rows = catalogue.rows
    assert catalogue.ids.tolist() == [3, 4, 7, 9]
    assert catalogue.weights.tolist() == [0, 2, 5, 3]
    assert rows.numbers.tolist() == [[0] * 5, [2, 4, 1, 8, 0], [0] * 5, [0] * 5]
    assert rows.ids.tolist() == [[-1] * 5, [3, 4, 7, 9, -1]]
    assert rows.bags["tags"].to_pylist() == [[], [5], [1, 2], [], []]
    assert rows.bags["history"].to_pylist() == [[]] * 5
    assert rows.groups[0].tolist() == [0] * 5
    assert rows.groups[1, :4].tolist() == [3, 4, 7, 9]
    assert catalogue.find(np.array([[9, 5], [3, -1]])).tolist() == [[3, 4], [0, 4]]
    np.testing.assert_allclose(np.exp(catalogue.log_q(np.array([3, 4, 7, 9, 5]))), [0, 0.2, 0.5, 0.3, 0], rtol=1e-6)


def test_items_are_drawn_by_weight(folder):
    catalogue = read_catalogue(data(folder), FEATURES)
    drawn = catalogue.draw(np.random.default_rng(0).random(100_000))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 100_000, [0, 0.2, 0.5, 0.3], atol=0.005)
    ends = np.array([0.0, np.nextafter(0.2, 0), 0.2, np.nextafter(1, 0)])
    assert catalogue.draw(ends).tolist() == [1, 1, 2, 3]


def test_without_a_weight_all_items_are_alike(folder):
    catalogue = read_catalogue(data(folder, weight=None), FEATURES)
    drawn = catalogue.draw(np.random.default_rng(0).random(100_000))
    np.testing.assert_allclose(np.bincount(drawn) / 100_000, [0.25] * 4, atol=0.005)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_every_item_is_in_one_batch_of_one_rank(folder, ranks):
    config = data(folder)
    catalogue = read_catalogue(config, FEATURES)
    batches = [[*catalogue.batches(config, rank, ranks, 1)] for rank in range(ranks)]
    assert {len(one) for one in batches} == {-(-4 // ranks)}
    found = [batch.groups[:, 1].item() for one in batches for batch in one]
    assert [item for item in found if item >= 0] == [3, 4, 7, 9]


def steps_of(folder, ranks, start=0, stop=6, seed=0):
    """Returns the items of every lane and step, by the rows of all ranks."""
    config = data(folder, negatives=DRAWN, hard_negatives="avoided", hard_negatives_per_sample=HARD)
    files = find_files("data.train", config.train, config)
    negatives = Negatives(read_catalogue(config, FEATURES, files.files[0]), config, seed)
    lanes, found = Lanes(files.rows, 4, 40), []
    for rank in range(ranks):
        loader = Loader(files, config, lanes, rank, ranks, seed, True, negatives)
        found.append([batch.groups[:, 1].view(4 // ranks, -1) for batch in loader.batches(start, stop)])
    return [np.concatenate([part.numpy() for part in step]) for step in zip(*found, strict=True)]


def test_negatives_do_not_depend_on_ranks_or_on_where_a_run_starts(folder):
    alone = steps_of(folder, 1)
    assert alone[0].shape == (4, 10 + DRAWN + 10 * HARD)
    for ranks in (2, 4):
        np.testing.assert_array_equal(steps_of(folder, ranks), alone)
    np.testing.assert_array_equal(steps_of(folder, 2, start=2), alone[2:])


def test_every_lane_step_epoch_and_seed_has_draws_of_its_own(folder):
    draws = [
        tuple(lane[10 : 10 + DRAWN]) for seed in (0, 1) for step in steps_of(folder, 1, seed=seed) for lane in step
    ]
    assert len({*draws}) > len(draws) / 2
    assert 3 not in {item for lane in draws for item in lane}


def test_negatives_follow_the_samples_and_weigh_nothing(folder):
    config = data(folder, negatives=DRAWN, hard_negatives="avoided", hard_negatives_per_sample=HARD)
    files = find_files("data.train", config.train, config)
    negatives = Negatives(read_catalogue(config, FEATURES, files.files[0]), config, 0)
    loader = Loader(files, config, Lanes(files.rows, 4, 40), 0, 1, 0, False, negatives)
    batch, table = next(loader.batches(0, 1)), pq.read_table(folder / "train.parquet").to_pylist()
    rows = 10 + DRAWN + 10 * HARD
    weights = batch.weights.view(4, rows)
    assert (weights[:, :10] == 1).all()
    assert (weights[:, 10:] == 0).all()
    users = batch.sparse["user"].lengths().view(4, rows)
    assert (users[:, :10] == 1).all()
    assert (users[:, 10:] == 0).all()
    hard = batch.groups[:, 1].view(4, rows)[:, 10 + DRAWN :].reshape(40, HARD)
    for lane in range(4):
        for place in range(10):
            wanted = (table[25 * lane + place]["avoided"] or [])[:HARD]
            assert hard[10 * lane + place].tolist()[: len(wanted)] == wanted
            assert (hard[10 * lane + place, len(wanted) :] < 0).all()


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"item": [7, 3, 7, 4]}, "item 7 is there twice"),
        ({"count": [0, 0, 0, 0]}, "every weight is 0"),
        ({"count": [1, -1, 0, 0]}, "-1.0 is not a weight"),
        ({"item": [7, None, 9, 4]}, "column 'item': null is not allowed for a group"),
        ({"tags": [1, 2, 3, 4]}, "column 'tags' is single ids, but a list in data.train"),
        ({"item": [7.5, 3, 9, 4]}, "column 'item' is of type double; a group must be an integer"),
    ],
)
def test_catalogues_that_are_refused(folder, columns, words):
    write_items(folder, **columns)
    with pytest.raises(InputError, match=words):
        read_catalogue(data(folder), FEATURES, SAMPLES_FILE)


@pytest.mark.parametrize(
    ("strings", "words"),
    [
        (["items"], "column 'item' has strings .string., but data.sparse.item had integers in data.train"),
        (["item"], "column 'item' has integers .int64., but data.sparse.item had strings in data.train"),
        (["avoided"], "column 'item' has integers, but column 'avoided' of data.train strings"),
        (["items", "item"], "column 'item' has strings, but column 'avoided' of data.train integers"),
        (["items", "item", "avoided"], None),
    ],
)
def test_ids_are_integers_or_strings_in_both(folder, strings, words):
    if "items" in strings:
        write_items(folder, item=["7", "3", "9", "4"])
    table = pq.read_table(folder / "train.parquet")
    for name, kind in (("item", pa.string()), ("avoided", pa.list_(pa.string()))):
        if name in strings:
            table = table.set_column(table.schema.get_field_index(name), name, table[name].cast(kind))
    pq.write_table(table, folder / "train.parquet")
    config = data(folder, hard_negatives="avoided")
    config.sparse["item"] = config.sparse["item"].model_copy(update={"ids": "hash"})
    files = find_files("data.train", config.train, config).files
    types = RecordedTypes.of_files(config, files, "data.train")
    with pytest.raises(InputError, match=words) if words else nullcontext():
        read_catalogue(config, FEATURES, files[0], types)


@pytest.mark.parametrize(
    "columns",
    [
        {"item": [7, 3, 9, 5]},
        {"count": [5, 1, 3, 2]},
        {"price": [1.0, 2.0, 3.0, 4.0]},
        {"tags": pa.array([[1], [2], None, [5]], pa.list_(pa.int32()))},
    ],
)
def test_a_fingerprint_changes_with_items_weights_and_features(folder, columns):
    before = read_catalogue(data(folder), FEATURES).fingerprint
    moved = [2, 0, 3, 1]
    write_items(
        folder, **{name: [values[place] for place in moved] for name, values in ITEMS.items() if name != "tags"}
    )
    table = pq.read_table(folder / "items.parquet")
    tags = pa.array([ITEMS["tags"][place] for place in moved], pa.list_(pa.int32()))
    pq.write_table(table.set_column(0, "tags", tags), folder / "items.parquet")
    assert read_catalogue(data(folder), FEATURES).fingerprint == before
    write_items(folder, **columns)
    assert read_catalogue(data(folder), FEATURES).fingerprint != before


def test_a_hard_negative_outside_the_catalogue_is_refused(folder):
    write_items(folder, item=[7, 3, 8, 4])
    with pytest.raises(InputError, match=r"column 'avoided' has item 9, which is not in data\.catalogue\.items"):
        steps_of(folder, 1)
