"""Directories by Hive's naming: columns that files lack come from their paths, as pyarrow's own data sets say."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from jobs import config as job_config
from jobs import launch, losses
from predictions import read

from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.__main__ import main as trainer
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.config.root import Config, to_toml
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.data.row_groups import find_training_files

COUNTRIES = ["DE", "São Tomé", "a/b=c", None]


def rows(number: int, seed: int = 0) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "x": random.standard_normal(number).astype(np.float32),
            "id": random.integers(0, 50, number),
            "country": [COUNTRIES[place] for place in random.integers(0, 4, number)],
            "day": random.integers(20260101, 20260104, number),
            "label": (random.random(number) < 0.4).astype(np.float32),
        }
    )


def write_hive(table: pa.Table, folder, file_format: str = "parquet") -> str:
    """Writes a table as pyarrow does, in directories by country and day."""
    names = ["country", "day"]
    scheme = ds.partitioning(table.select(names).schema, flavor="hive")
    ds.write_dataset(table, folder, format=file_format, partitioning=scheme)
    return str(folder)


def settings(*train: str, **changes) -> DataConfig:
    tree = {
        "train": list(train),
        "dense": {"x": {}, "day": {}},
        "sparse": {"id": {"rows": 50}, "country": {"rows": 1000, "ids": "hash"}},
        "shuffle": False,
    }
    return DataConfig.model_validate(tree | changes)


def batch(data: DataConfig):
    files = find_files("data.train", data.train, data)
    (found,) = Loader(files, data, Lanes(files.rows, 1, files.rows), 0, 1, seed=0, shuffle=False).batches(0, 1)
    return found


def refusal(data: DataConfig) -> str:
    with pytest.raises(InputError) as refused:
        batch(data)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def by_arrow(folder: str) -> pa.Table:
    """Returns the rows in the order of their files, with the columns of the paths, by pyarrow."""
    scheme = ds.HivePartitioning(pa.schema([("country", pa.string()), ("day", pa.int64())]))
    found = ds.dataset(folder, partitioning=scheme)
    return pa.concat_tables(
        [part.to_table(schema=found.schema) for part in sorted(found.get_fragments(), key=lambda part: part.path)]
    )


@pytest.mark.parametrize("pattern", ["{}", "{}/*/*/*.parquet", "file://{}", "{}/country=*/day=2026010?"])
def test_columns_of_the_path(tmp_path, pattern):
    folder = write_hive(rows(200), tmp_path / "hive")
    expected = by_arrow(folder)
    pq.write_table(expected, tmp_path / "flat.parquet")
    if pattern.endswith("?"):
        found = batch(settings(*(str(one) for one in sorted((tmp_path / "hive").glob("*/*")))))
    else:
        found = batch(settings(pattern.format(folder)))
    flat = batch(settings(str(tmp_path / "flat.parquet")))
    assert expected["country"].null_count > 20
    for here, there in ((found.dense, flat.dense), (found.labels, flat.labels)):
        assert here.equal(there)
    assert found.sparse.lengths().equal(flat.sparse.lengths())
    assert found.sparse.values().equal(flat.sparse.values())


def test_another_reader(tmp_path):
    table = rows(100)
    parquet = batch(settings(write_hive(table, tmp_path / "parquet")))
    own = batch(settings(write_hive(table, tmp_path / "arrow", "ipc"), reader="ipc_reader:IpcReader"))
    csv = batch(
        settings(write_hive(table, tmp_path / "csv", "csv"), reader="csv", csv={"cache": str(tmp_path / "cache")})
    )
    for other in (own, csv):
        assert parquet.dense.equal(other.dense)
        assert parquet.sparse.values().equal(other.sparse.values())


def write_file(path, **columns) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"label": [0.0, 1.0], **columns}), path)


def test_a_filter_by_columns_of_the_path(tmp_path):
    folder = write_hive(rows(200), tmp_path / "hive")
    select = {"filter": [["country", "in", ["DE", "São Tomé"]], ["day", ">", 20260101]]}
    data = settings(folder, dense={"x": {}}, sparse={"id": {"rows": 50}}, select=select)
    files = find_training_files(data, seed=0)
    (found,) = Loader(files, data, Lanes(files.rows, 1, files.rows), 0, 1, seed=0, shuffle=False).batches(0, 1)
    table = by_arrow(folder)
    chosen = [
        (x, one)
        for x, one, country, day in zip(
            *(table[name].to_pylist() for name in ("x", "id", "country", "day")), strict=True
        )
        if country in ("DE", "São Tomé") and day > 20260101
    ]
    assert found.dense[:, 0].tolist() == [x for x, _ in chosen]
    assert found.sparse.values().tolist() == [one for _, one in chosen]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["01", "2", "-3"], [1, 2, -3]),
        (["7", "__HIVE_DEFAULT_PARTITION__", "9"], [7, -1, 9]),
        (["__HIVE_DEFAULT_PARTITION__"], [-1]),
    ],
)
def test_integers_in_a_path(tmp_path, texts, expected):
    for number, text in enumerate(texts):
        write_file(tmp_path / f"{number}" / f"x={text}" / "a.parquet")
    found = batch(settings(str(tmp_path), dense={"x": {"missing": -1.0}}, sparse={}))
    assert found.dense[::2, 0].tolist() == expected
    assert found.dense[1::2, 0].tolist() == expected


def test_one_text_among_integers_makes_all_of_them_texts(tmp_path):
    for text in ("1", "one", "999999999999999999999"):
        write_file(tmp_path / f"x={text}" / "a.parquet")
    write_file(tmp_path / "flat" / "a.parquet", x=["1", "one"])
    found = batch(settings(str(tmp_path), dense={}, sparse={"x": {"rows": 10**6, "ids": "hash"}})).sparse.values()
    first, second = found[:2].tolist()  # of the flat file
    assert found.tolist()[2:4] == [first, first]
    assert found.tolist()[-2:] == [second, second]
    assert "column 'x' is of type string; it must be a number" in refusal(
        settings(str(tmp_path), dense={"x": {}}, sparse={})
    )


def test_a_number_with_a_plus_sign_is_a_text(tmp_path):
    for text in ("+5", "6"):
        write_file(tmp_path / f"x={text}" / "a.parquet")
    write_file(tmp_path / "flat" / "a.parquet", x=["+5", "6"])
    found = batch(settings(str(tmp_path), dense={}, sparse={"x": {"rows": 10**6, "ids": "hash"}})).sparse.values()
    assert found[:2].tolist() == found[[2, 4]].tolist()


def test_only_columns_that_the_configuration_names_are_looked_for(tmp_path):
    write_file(tmp_path / "run=3" / "other" / "a.parquet", x=[1.0, 2.0])
    data = settings(str(tmp_path), dense={"x": {}}, sparse={})
    files = find_files("data.train", data.train, data)
    assert files.files[0].schema.names == ["label", "x"]
    assert batch(data).dense[:, 0].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("3", pa.array([3, 3], pa.int8())),
        ("03", pa.array([3, 3])),
        ("DE", pa.array(["DE", "DE"]).dictionary_encode()),
        ("2026-01-01", pa.array([20454, 20454], pa.int32()).cast(pa.date32())),
        ("true", pa.array([True, True])),
        ("__HIVE_DEFAULT_PARTITION__", pa.array([None, None], pa.string())),
    ],
)
def test_a_column_in_the_file_and_in_the_path_alike(tmp_path, text, values):
    write_file(tmp_path / f"x={text}" / "a.parquet", x=values)
    found = batch(settings(str(tmp_path), dense={}, sparse={"x": {"rows": 10, "ids": "hash"}}))
    assert found.sparse.lengths().tolist() == [values.is_valid()[0].as_py()] * 2


@pytest.mark.parametrize(
    ("text", "values", "value"),
    [
        ("3", pa.array([3, 4]), "4"),
        ("DE", pa.array(["DE", "FR"]), "'FR'"),
        ("DE", pa.array(["DE", None]), "None"),
        ("DE", pa.array([3, 4]), "3"),
        ("__HIVE_DEFAULT_PARTITION__", pa.array([None, 4]), "4"),
    ],
)
def test_a_column_in_the_file_and_in_the_path_that_disagree(tmp_path, text, values, value):
    write_file(tmp_path / f"x={text}" / "a.parquet", x=values)
    message = refusal(settings(str(tmp_path), dense={}, sparse={"x": {"rows": 10, "ids": "hash"}}))
    assert f"a.parquet, row group 0, row {0 if value == '3' else 1}: column 'x' is {value}, but" in message
    assert "in the path of the file; make them alike, or rename the directory" in message


def test_a_file_outside_of_the_directories(tmp_path):
    folder = write_hive(rows(50), tmp_path / "hive")
    write_file(tmp_path / "hive" / "a.parquet", x=[1.0, 2.0], id=[1, 2])
    assert "a.parquet: no column 'day'; the file has: label, x, id" in refusal(settings(folder))
    write_file(tmp_path / "hive" / "a.parquet", x=[1.0, 2.0], id=[1, 2], country=["DE", "DE"], day=["1", "2"])
    assert "column 'day' is of type string; it must be a number" in refusal(settings(folder))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs on rows in one file for each partition with all columns, and in directories; returns their folder."""
    folder = tmp_path_factory.mktemp("trained")
    for split, number in (("train", 600), ("validation", 150)):
        write_hive(rows(number, seed=number), folder / "hive" / split)
        expected = by_arrow(str(folder / "hive" / split))
        start = 0
        for place, file in enumerate(sorted((folder / "hive" / split).rglob("*.parquet"))):
            size = pq.read_metadata(file).num_rows
            (folder / "flat" / split).mkdir(parents=True, exist_ok=True)
            pq.write_table(expected.slice(start, size), folder / "flat" / split / f"{place:02d}.parquet")
            start += size
    vocabulary((str(folder / "hive/train"),), ("country", "day"), str(folder / "ids"))
    jobs = [
        {
            "config": job_config(
                folder / name / "train",
                train__steps=8,
                data__validation=[str(folder / name / "validation")],
                data__dense={"x": {}, "day": {"mean": 20260101.0}},
                data__sparse={
                    "id": {"rows": 50},
                    "country": {"rows": 9, "ids": "vocabulary", "vocabulary": str(folder / "ids/country.parquet")},
                },
            ),
            "out": str(folder / f"run-{name}"),
        }
        for name in ("hive", "flat")
    ]
    launch(jobs, 2, folder)
    (folder / "config.toml").write_text(to_toml(Config.model_validate(jobs[0]["config"])))
    return folder


def evaluation(run) -> dict:
    """Returns the last evaluation without its times."""
    line = json.loads((run / "evaluations.jsonl").read_text().splitlines()[-1])
    return {key: value for key, value in line.items() if key not in ("time", "seconds")}


def test_trains_as_on_files_with_all_columns(trained):
    assert losses(trained / "run-hive") == losses(trained / "run-flat")
    first, second = (evaluation(trained / f"run-{name}") for name in ("hive", "flat"))
    assert first == second
    assert first["split"] == "validation"


def test_counts_ids_of_the_path(trained):
    expected = by_arrow(str(trained / "hive/train"))
    for name in ("country", "day"):
        table = pq.read_table(trained / "ids" / f"{name}.parquet")
        counts = {one["values"]: one["counts"] for one in expected[name].drop_null().value_counts().to_pylist()}
        assert dict(zip(table["id"].to_pylist(), table["count"].to_pylist(), strict=True)) == counts


def test_predicts_and_keeps_columns_of_the_path(trained, tmp_path):
    outputs = []
    for name in ("hive", "flat"):
        flags = ["--source", trained / name / "validation", "--to", tmp_path / name, "--keep-columns", "country", "day"]
        command = ["predict", trained / "config.toml", "--out", trained / "run-hive", *flags]
        assert trainer([str(word) for word in command]) == 0
        outputs.append(read(tmp_path / name))
    assert outputs[0]["country"].to_pylist() == by_arrow(str(trained / "hive/validation"))["country"].to_pylist()
    assert outputs[0].equals(outputs[1])
