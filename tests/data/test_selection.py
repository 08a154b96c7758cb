"""The choice of samples from outside: real files in, the rows of every rank's batches out."""

import itertools
import pickle
from collections import Counter, defaultdict
from datetime import date, datetime, timedelta
from decimal import Decimal

import counting_reader
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

from trainer.batches.loader import Loader
from trainer.config.conditions import COMPARISONS
from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.data.row_groups import RowGroupReader, find_evaluated_files, find_training_files
from trainer.data.selection import by_statistics, meets_all

SEED = 5
FILES = {"a/1": [40, 0, 7], "a/2": [1, 100], "b/1": [64, 33, 64], "b/2": [90]}
ROWS = 399
PLAIN = {
    "dense": {"row_id": {}},
    "labels": ["label"],
    "lanes": 8,
    "global_batch_size": 32,
    "shuffle_window_rows": 30,
}


def table(first: int, rows: int, group: int) -> pa.Table:
    """Returns rows of every type that a filter compares; `group` and `wave` are bounded in each row group."""
    random = np.random.default_rng([7, first])
    numbers = np.arange(first, first + rows)
    country = random.choice(["DE", "FR", "ÖS"], rows)
    some = random.random(rows) < 0.2
    price = np.where(random.random(rows) < 0.1, np.nan, np.round(random.normal(size=rows), 1))
    moments = [datetime(2026, 1, 1) + timedelta(hours=int(n)) for n in numbers]
    return pa.table(
        {
            "row_id": numbers,
            "label": pa.array((random.random(rows) < 0.2).astype(np.float32)),
            "country": pa.array(country, mask=some),
            "kind": pa.array(country, mask=some).dictionary_encode(),
            "group": pa.array(np.full(rows, group, np.int8)),
            "wave": pa.array(numbers % 10 + 10.0 * group, pa.float32()),
            "small": pa.array(random.integers(-128, 128, rows).astype(np.int8), mask=some),
            "large": pa.array(numbers.astype(np.uint64) + np.uint64(2**63 - 200)),
            "price": pa.array(price, pa.float32(), mask=some),
            "exact": pa.array([Decimal(int(n)) / 4 for n in numbers], pa.decimal128(9, 2)),
            "flag": pa.array(random.random(rows) < 0.5, mask=some),
            "day": pa.array([moment.date() for moment in moments], pa.date32()),
            "at": pa.array(moments, pa.timestamp("us", "Europe/Berlin")),
            "nothing": pa.array([None] * rows, pa.int64()),
            "tags": pa.array([[int(n)] * int(n % 3) for n in numbers], pa.list_(pa.int64())),
            "weight": pa.array(1.0 + numbers % 3),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, first, group = tmp_path_factory.mktemp("select"), 0, 0
    for name, groups in FILES.items():
        file = path / f"{name}.parquet"
        file.parent.mkdir(exist_ok=True)
        with pq.ParquetWriter(file, table(0, 0, 0).schema) as writer:
            for rows in groups:
                writer.write_table(table(first, rows, group))
                first, group = first + rows, group + bool(rows)
    assert first == ROWS
    return path


def settings(folder, **changes) -> DataConfig:
    return DataConfig.model_validate(PLAIN | {"train": [str(folder)]} | changes)


def make_loader(config: DataConfig, rank=0, world=1) -> Loader:
    files = find_training_files(config, SEED)
    lanes = Lanes(files.rows, 8, config.global_batch_size)
    return Loader(files, config, lanes, rank, world, SEED, config.shuffle)


def steps_of(config: DataConfig, epochs=1, world=1, start=0) -> list[list[tuple[int, float]]]:
    """Returns, for each step, the samples in the order of the ranks: the number of the row and its weight."""
    loaders = [make_loader(config, rank, world) for rank in range(world)]
    stop = epochs * loaders[0].steps_per_epoch
    ranks = [list(loader.batches(start, stop)) for loader in loaders]
    return [
        [
            (int(row), float(weight))
            for batch in batches
            for row, weight in zip(batch.dense[:, 0], batch.weights, strict=True)
            if weight > 0
        ]
        for batches in zip(*ranks, strict=True)
    ]


def samples(config: DataConfig, **options) -> list[tuple[int, float]]:
    return [*itertools.chain(*steps_of(config, **options))]


def row_groups(folder) -> list[tuple[str, int, list[dict]]]:
    """Returns file, row group and rows as Python objects."""
    found = []
    for name in FILES:
        file = pq.ParquetFile(folder / f"{name}.parquet")
        found += [(name, i, file.read_row_group(i).to_pylist()) for i in range(file.num_row_groups)]
    return found


def is_known(value):
    return value is not None


FILTERS = [
    ([["country", "==", "DE"]], lambda row: row["country"] == "DE"),
    ([["country", "!=", "DE"]], lambda row: is_known(row["country"]) and row["country"] != "DE"),
    ([["country", ">", "FR"]], lambda row: is_known(row["country"]) and row["country"] > "FR"),
    ([["kind", "in", ["FR", "ÖS", "XX"]]], lambda row: row["kind"] in ("FR", "ÖS")),
    ([["kind", "not in", ["FR", "ÖS"]]], lambda row: row["kind"] == "DE"),
    ([["group", ">=", 3]], lambda row: row["group"] >= 3),
    ([["group", "<", 3.0]], lambda row: row["group"] < 3),
    ([["group", "in", [1, 4, 1000]]], lambda row: row["group"] in (1, 4)),
    ([["group", "not in", [1, 4, 1000]]], lambda row: row["group"] not in (1, 4)),
    ([["group", "!=", 2]], lambda row: row["group"] != 2),
    ([["wave", "<=", 24.5]], lambda row: row["wave"] <= 24.5),
    ([["wave", ">", 24]], lambda row: row["wave"] > 24),
    ([["small", "<=", 1000]], lambda row: is_known(row["small"])),
    ([["small", "not in", [3, 1000]]], lambda row: is_known(row["small"]) and row["small"] != 3),
    ([["small", "<", -5]], lambda row: is_known(row["small"]) and row["small"] < -5),
    ([["large", ">", 2**63 - 1]], lambda row: row["large"] > 2**63 - 1),
    ([["large", ">=", -1]], lambda row: True),
    ([["large", "==", 2**63 + 3]], lambda row: row["large"] == 2**63 + 3),
    ([["price", "==", 0.1]], lambda row: is_known(row["price"]) and np.float32(row["price"]) == np.float32(0.1)),
    ([["price", "!=", 0.1]], lambda row: is_known(row["price"]) and np.float32(row["price"]) != np.float32(0.1)),
    ([["price", "in", [0.1, -0.2]]], lambda row: row["price"] is not None and round(row["price"], 5) in (0.1, -0.2)),
    ([["price", ">=", 0]], lambda row: is_known(row["price"]) and row["price"] >= 0),
    ([["exact", "<=", 20.25]], lambda row: row["exact"] <= Decimal("20.25")),
    ([["flag", "==", True]], lambda row: row["flag"] is True),
    ([["flag", "!=", True]], lambda row: row["flag"] is False),
    ([["day", ">=", "2026-01-09"]], lambda row: row["day"] >= date(2026, 1, 9)),
    ([["at", "<", "2026-01-05T12:00:00"]], lambda row: row["row_id"] < 4 * 24 + 12),
    ([["label", "==", 1]], lambda row: row["label"] == 1),
    (
        [["country", "in", ["DE", "FR"]], ["row_id", ">", 20], ["flag", "==", False]],
        lambda row: row["country"] in ("DE", "FR") and row["row_id"] > 20 and row["flag"] is False,
    ),
]


@pytest.mark.parametrize(("conditions", "meets"), FILTERS, ids=[str(conditions) for conditions, _ in FILTERS])
def test_a_filter_takes_the_rows_that_python_takes(folder, conditions, meets):
    config = settings(folder, select={"filter": conditions}, sparse={"tags": {"rows": ROWS}})
    expected = [row["row_id"] for _, _, rows in row_groups(folder) for row in rows if meets(row)]
    assert len(expected) > 0
    assert sorted(row for row, _ in samples(config)) == expected
    evaluated = find_evaluated_files("data.validation", config.train, config)
    assert evaluated.rows == len(expected)


@pytest.mark.parametrize("condition", [["country", "==", "DE"], ["small", ">", 3], ["price", "<", 0.5]], ids=str)
def test_a_filter_of_text_files_by_columns_that_are_no_features(folder, tmp_path, condition):
    columns = ["row_id", "label", condition[0]]
    for file in folder.glob("*/*.parquet"):
        table = pq.read_table(file, columns=columns)
        csv.write_csv(table, tmp_path / f"{file.parent.name}{file.stem}.csv", csv.WriteOptions(quoting_style="none"))
    select = {"filter": [condition], "keep_negatives": 0.5}
    of_text = make_loader(settings(tmp_path, reader="csv", select=select, csv={"cache": f"{tmp_path}/cache"}))
    batches = of_text.batches(0, 3 * of_text.steps_per_epoch)
    found = {row for batch in batches for row in batch.dense[batch.weights > 0, 0].tolist()}
    rows = {row for row, _ in samples(settings(folder, select={"filter": [condition]}))}
    labels = {row["row_id"]: row["label"] for _, _, every in row_groups(folder) for row in every}
    assert found <= rows
    assert {row for row in rows if labels[row]} <= found
    assert len(rows) * 0.5 < len(found) < len(rows)


@pytest.mark.parametrize("memory", [False, True])
def test_columns_of_a_filtered_row_stay_together(folder, memory):
    import fsspec

    where = str(folder)
    if memory:
        where = "memory://selected"
        fsspec.filesystem("memory").put(f"{folder}/", "/selected/", recursive=True)
    config = settings(
        where, select={"filter": [["flag", "==", True]]}, sparse={"tags": {"rows": ROWS}}, weight="weight"
    )
    labels = {row["row_id"]: row["label"] for _, _, rows in row_groups(folder) for row in rows}
    for batch in make_loader(config).batches(0, 3):
        tags = batch.sparse["tags"]
        for i, number in enumerate(batch.dense[:, 0].int().tolist()):
            if batch.weights[i]:
                begin, end = tags.offsets()[i : i + 2].tolist()
                assert tags.values()[begin:end].tolist() == [number] * (number % 3)
                assert batch.labels[i, 0] == labels[number]
                assert batch.weights[i] == 1 + number % 3


def test_row_groups_without_a_match_are_never_read(folder):
    config = settings(
        folder,
        select={"filter": [["wave", ">=", 30], ["wave", "<", 54.5]]},
        reader="counting_reader:Reader",
        shuffle_window_rows=200,
    )
    counting_reader.READS.clear()
    loader = make_loader(config)
    # Of the first two of them all rows match, but NaN might be among values of floating point, whatever their bounds.
    possible = {("a/2.parquet", 1), ("b/1.parquet", 0), ("b/1.parquet", 1)}
    assert {*counting_reader.READS} == {(*one, "wave") for one in possible}
    counting_reader.READS.clear()
    list(loader.batches(0, loader.steps_per_epoch))
    assert {(file, index) for file, index, _ in counting_reader.READS} == possible


def test_row_groups_of_which_all_rows_match_are_not_read_to_count(folder):
    config = settings(folder, select={"filter": [["group", ">=", 3]]}, reader="counting_reader:Reader")
    counting_reader.READS.clear()
    files = find_training_files(config, SEED)
    assert counting_reader.READS == []
    assert files.rows == 100 + 64 + 33 + 64 + 90
    list(Loader(files, config, Lanes(files.rows, 8, 32), 0, 1, SEED, True).batches(0, 5))
    assert "group" not in {column for _, _, column in counting_reader.READS}


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_statistics_never_contradict_the_values(folder, comparison):
    values = {
        "group": [-1, 0, 3, 6, 7, 300],
        "wave": [-1.0, 0, 10, 34.5, 79, 79.5, 90],
        "large": [0, 2**63 - 200, 2**63, 2**63 + 198, 2**64],
        "label": [0, 1, 0.5],
        "country": ["", "DE", "EE", "ÖS", "ÖT"],
        "flag": [True, False],
        "nothing": [0],
    }
    conditions = [[name, comparison, one] for name, some in values.items() for one in some]
    if comparison.endswith("in"):
        conditions = [[name, comparison, [one, some[0]]] for name, some in values.items() for one in some]
    config = settings(folder, select={"filter": conditions})
    files = find_files("data.train", config.train, config)
    reader = RowGroupReader(files, config, [*values])
    known = 0
    for group in files.row_groups:
        statistics = reader.statistics(group, [*values])
        column = reader.read(group)
        for clause in config.select.clauses:
            found = by_statistics([clause], files.files[group.file].schema, statistics, group.rows)
            meets = meets_all([clause], column, group.rows)
            assert found in (None, meets.any())
            assert found is None or meets.all() == meets.any()
            known += found is not None
    assert known > 50


ALL = {
    "filter": [["country", "in", ["DE", "FR"]]],
    "keep_negatives": 0.3,
    "files": 0.75,
}
CHOICES = [{"filter": ALL["filter"]}, {"keep_negatives": 0.2}, {"files": 0.5}, {"mixture": {"a": 2.5}}, ALL]


@pytest.mark.parametrize("select", CHOICES, ids=str)
def test_the_same_samples_on_any_number_of_ranks_and_from_any_step(folder, select):
    if "mixture" in select:
        select = {"mixture": {f"{folder}/a": 2.5, f"{folder}/b/*.parquet": 0.4}}
    config = settings(folder, select=select)
    steps = steps_of(config, epochs=2)
    for world in (2, 4, 8, 16):
        assert steps_of(config, epochs=2, world=world) == steps
    for start in (1, len(steps) // 2, len(steps) - 1):
        assert steps_of(config, epochs=2, start=start) == steps[start:]


@pytest.mark.parametrize("select", [*CHOICES, {}], ids=str)
def test_ranks_receive_equal_choices(folder, select):
    if "mixture" in select:
        select = {"mixture": {f"{folder}/a": 2.5}}
    files = find_training_files(settings(folder, select=select), seed=3)
    assert pickle.loads(pickle.dumps(files)) == files


@pytest.mark.parametrize("part", [0.05, 0.1, 0.5, 0.99])
def test_negatives_are_kept_in_part_others_every_epoch_and_weigh_more(folder, part):
    config = settings(folder, select={"keep_negatives": part})
    every = row_groups(folder)
    labels = {row["row_id"]: row["label"] for _, _, rows in every for row in rows}
    steps = steps_of(config, epochs=3)
    each = len(steps) // 3
    epochs = [dict(itertools.chain(*steps[n * each : (n + 1) * each])) for n in range(3)]
    kept = [{row for row in epoch if labels[row] == 0} for epoch in epochs]
    assert all({row for row in epoch if labels[row]} == {row for row in labels if labels[row]} for epoch in epochs)
    assert len({len(epoch) for epoch in epochs}) == 1
    assert len({frozenset(one) for one in kept}) == 3
    groups = [{row["row_id"] for row in rows if row["label"] == 0} for _, _, rows in every]
    negatives = sum(map(len, groups))
    tiny = sum(part * len(group) < 1 for group in groups)  # of which one is kept, as none could make up for it
    assert abs(len(kept[0]) - part * negatives) <= 0.5 + tiny
    for group in filter(None, groups):
        here = group & kept[0]
        assert abs(len(here) - part * len(group)) <= 1
        for row in here:
            assert epochs[0][row] == pytest.approx(len(group) / len(here), rel=1e-6)
    for epoch in epochs:
        mean = sum(weight * labels[row] for row, weight in epoch.items()) / sum(epoch.values())
        assert mean == pytest.approx(sum(labels.values()) / len(labels), rel=1e-6)


def test_negatives_of_a_label_of_another_type(tmp_path):
    days = pa.array([0, 1] * 20, pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"row_id": [*range(40)], "label": days}), tmp_path / "x.parquet")
    (epoch,) = [dict(samples(settings(tmp_path, select={"keep_negatives": 0.25})))]
    assert sorted(row for row in epoch if row % 2) == [*range(1, 40, 2)]
    assert [weight for row, weight in epoch.items() if row % 2 == 0] == [4.0] * 5


def test_kept_negatives_are_drawn_evenly(folder):
    """Over many epochs every negative comes as often as others: chi-square of their counts, far from its tail."""
    config = settings(folder, train=[f"{folder}/b/2.parquet"], select={"keep_negatives": 0.25})
    epochs = 200
    counts = Counter(row for row, _ in samples(config, epochs=epochs))
    labels = {row["row_id"]: row["label"] for name, _, rows in row_groups(folder) if name == "b/2" for row in rows}
    negatives = np.array([counts[row] for row in labels if labels[row] == 0])
    expected = negatives.sum() / len(negatives)
    assert all(counts[row] == epochs for row in labels if labels[row])
    chi = ((negatives - expected) ** 2).sum() / (expected * (1 - expected / epochs))
    assert 0.5 * len(negatives) < chi < 1.6 * len(negatives)


def test_a_mixture_takes_files_so_many_times(folder):
    times = {"a/1": 2.5, "a/2": 2.5, "b/1": 0.4, "b/2": 1.0}
    select = {"mixture": {f"{folder}/a": 2.5, f"{folder}/b/1.parquet": 0.4}}
    config = settings(folder, select=select)
    file_of = {row["row_id"]: name for name, _, rows in row_groups(folder) for row in rows}
    totals = Counter(file_of.values())
    steps = steps_of(config, epochs=2)
    half = len(steps) // 2
    for epoch in (steps[:half], steps[half:]):
        counts = Counter(row for row, weight in itertools.chain(*epoch))
        assert {weight for _, weight in itertools.chain(*epoch)} == {1.0}
        per_file = defaultdict(list)
        for row, name in file_of.items():
            per_file[name].append(counts[row])
        for name, found in per_file.items():
            assert {*found} <= {int(times[name]), -int(-times[name] // 1)}
        both = sum(per_file["a/1"]) + sum(per_file["a/2"])
        assert abs(both - 2.5 * (totals["a/1"] + totals["a/2"])) <= 0.5
        assert abs(sum(per_file["b/1"]) - 0.4 * totals["b/1"]) <= 0.5
        assert sum(per_file["b/2"]) == totals["b/2"]
    chosen = [
        {row for row, _ in itertools.chain(*part) if file_of[row] == "b/1"} for part in (steps[:half], steps[half:])
    ]
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize(("part", "number"), [(0.01, 1), (0.5, 2), (0.75, 3), (1.0, 4)])
def test_a_part_of_the_files(folder, part, number):
    config = settings(folder, select={"files": part})
    file_of = {row["row_id"]: name for name, _, rows in row_groups(folder) for row in rows}
    rows = [row for row, _ in samples(config)]
    chosen = {file_of[row] for row in rows}
    assert len(chosen) == number
    assert sorted(rows) == sorted(row for row, name in file_of.items() if name in chosen)
    seeds = {frozenset(file.name for file in find_training_files(config, seed).files) for seed in range(20)}
    assert (len(seeds) > 1) == (number < 4)


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_chosen_sample_is_where_it_is_said_to_be(folder, shuffle):
    select = ALL | {"mixture": {f"{folder}/b": 1.7}, "files": 1.0}
    config = settings(folder, select=select, shuffle=shuffle)
    loader, files = make_loader(config), find_training_files(config, SEED)
    lanes = Lanes(files.rows, 8, 32)
    for step, batch in enumerate(loader.batches(0, 2 * lanes.steps), 1):
        for position, (row, weight) in enumerate(zip(batch.dense[:, 0], batch.weights, strict=True)):
            found = loader.locate(step, position)
            assert (found == "padding") == (weight == 0)
            if weight:
                name, group, place = (part.rpartition(" ")[2] for part in found.split(", "))
                assert pq.ParquetFile(name).read_row_group(int(group))["row_id"][int(place)].as_py() == row


def test_a_message_names_the_row_of_the_file(tmp_path):
    pq.write_table(
        pa.table({"row_id": [0.0] * 6, "label": [0, 1, 0, 1, 7, 1], "keep": [0, 1, 0, 1, 1, 1]}), tmp_path / "x.parquet"
    )
    config = settings(tmp_path, select={"filter": [["keep", "==", 1]]})
    with pytest.raises(InputError, match=r"x\.parquet, row group 0, row 4, column 'label': 7"):
        samples(config)


def test_a_file_that_changes_after_it_was_counted(tmp_path):
    columns = {"row_id": [0.0] * 4, "label": [0, 1, 0, 1]}
    pq.write_table(pa.table(columns | {"keep": [1, 0, 0, 1]}), tmp_path / "x.parquet")
    loader = make_loader(settings(tmp_path, select={"filter": [["keep", "==", 1]]}))
    pq.write_table(pa.table(columns | {"keep": [1, 1, 0, 1]}), tmp_path / "x.parquet")
    with pytest.raises(
        InputError, match=r"row group 0: has 3 rows that meet data\.select\.filter, but had 2 when the job"
    ):
        next(loader.batches(0, 1))


WRONG = [
    ({"filter": [["country", "=", "DE"]]}, "no comparison '='; known: ==, !=, <, <=, >, >=, in, not in"),
    ({"filter": [["country", "=="]]}, "a condition is a column, a comparison and a value"),
    ({"filter": [["country", "in", "DE"]]}, "'in' takes a list of values"),
    ({"filter": [["country", "==", ["DE"]]]}, "'==' takes one value; use 'in' for several"),
    ({"filter": [["country", "in", []]]}, "with an empty list; name at least one value"),
    (
        {"filter": [["contry", "==", "DE"]]},
        r"1\.parquet: no column 'contry', which data\.select\.filter names.*'country'",
    ),
    ({"filter": [["country", "==", 3]]}, r"column 'country' of type string with 3; it must be a string"),
    ({"filter": [["kind", ">", 3.5]]}, r"column 'kind' of type dictionary.* with 3\.5; it must be a string"),
    ({"filter": [["group", "==", "3"]]}, r"column 'group' of type int8 with '3'; it must be a whole number"),
    ({"filter": [["group", "<", 3.5]]}, r"column 'group' of type int8 with 3\.5; it must be a whole number"),
    ({"filter": [["group", "==", True]]}, r"with True; it must be a whole number"),
    ({"filter": [["price", "in", [1.0, "x"]]]}, r"column 'price' of type float with 'x'; it must be a number"),
    ({"filter": [["flag", "==", 1]]}, r"column 'flag' of type bool with 1; it must be true or false"),
    ({"filter": [["day", ">", 3]]}, r"column 'day' of type date32.* with 3; it must be a string such as '2026-01-31'"),
    ({"filter": [["day", ">", "soon"]]}, r"with 'soon'; it must be a string such as '2026-01-31'"),
    ({"filter": [["tags", "==", 3]]}, r"column 'tags' of type list.*; it must be a column of numbers"),
    ({"filter": [["group", ">", 100]]}, r"data\.select leaves none of the 399 rows of data\.train; loosen"),
    ({"filter": [["nothing", "<", 1]]}, r"data\.select leaves none of the 399 rows"),
    ({"mixture": {"{folder}/c/*.parquet": 2.0}}, r"data\.select\.mixture: no Parquet file at '.*/c/\*\.parquet'"),
    (
        {"mixture": {"{folder}": 2.0, "{folder}/a": 3.0}},
        r"'.*' and '.*/a', and both are .*a/1\.parquet; each file has one",
    ),
    ({"mixture": {"{folder}": 1e-9}}, r"data\.select leaves none of the 399 rows"),
    ({"mixture": {"{folder}": 0.0}}, r"greater than 0"),
    ({"keep_negatives": 0.0}, r"greater than 0"),
    ({"keep_negatives": 1.5}, r"less than or equal to 1"),
    ({"files": 0.0}, r"greater than 0"),
    ({"files": 2.0}, r"less than or equal to 1"),
]


@pytest.mark.parametrize(("select", "message"), WRONG, ids=str)
def test_a_wrong_choice_is_one_line(folder, select, message):
    if "mixture" in select:
        select = {"mixture": {name.format(folder=folder): times for name, times in select["mixture"].items()}}
    with pytest.raises(ValueError, match=message):
        find_training_files(settings(folder, select=select), SEED)


def test_a_mixture_of_files_that_are_not_trained_on(folder):
    config = settings(folder, train=[f"{folder}/a"], select={"mixture": {f"{folder}/b": 2.0}})
    with pytest.raises(
        InputError, match=r"data\.select\.mixture has '.*/b', which is none of the files of data\.train"
    ):
        find_training_files(config, SEED)


def test_negatives_of_a_numeric_label(folder):
    with pytest.raises(
        ValueError, match=r"data\.select\.keep_negatives is 0\.5, but data\.numeric_labels names 'label'"
    ):
        settings(folder, numeric_labels=["label"], select={"keep_negatives": 0.5})
