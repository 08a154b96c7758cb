"""Vectors as dense features: every list type and transform against plain NumPy, and training on them."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w
from jobs import config as plain_config
from jobs import launch, losses

from trainer.__main__ import main as trainer
from trainer.batches.chunk import Chunk
from trainer.batches.decode import decode
from trainer.batches.loader import Loader
from trainer.config.data import DataConfig
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

ROWS, WIDTH = 200, 5
TYPES = {
    "list of float": pa.list_(pa.float32()),
    "list of double": pa.list_(pa.float64()),
    "list of half": pa.list_(pa.float16()),
    "large list": pa.large_list(pa.float32()),
    "fixed size": pa.list_(pa.float32(), WIDTH),
    "fixed size of half": pa.list_(pa.float16(), WIDTH),
    "fixed size of double": pa.list_(pa.float64(), WIDTH),
    "list of integers": pa.list_(pa.int16()),
}
KEYS = {
    "plain": {},
    "missing": {"missing": -1.5},
    "all": {"clip": [-2.0, 30.0], "transform": "log3", "mean": 0.5, "std": 0.25, "missing": 4.0},
}


def vectors_of(rows=ROWS, width=WIDTH, seed=0):
    """Vectors with halves, so that every type holds them, some null, some with a null at a place."""
    random = np.random.default_rng(seed)
    whole = random.integers(-2, 60, (rows, width)).astype(float)
    found = [[*row] for row in whole]
    for row in range(3, rows, 17):
        found[row] = None
    for row in range(5, rows, 19):
        if found[row]:
            found[row][row % width] = None
    return found


def expected(vectors, clip=None, transform="none", mean=0.0, std=1.0, missing=0.0):
    """The dense columns, [R, width] float64."""
    filled = [[missing] * WIDTH if row is None else [missing if x is None else x for x in row] for row in vectors]
    values = np.clip(np.array(filled), *clip) if clip else np.array(filled)
    return ((np.log(values + 3) if transform == "log3" else values) - mean) / std


def decoded(column, order=None, start=0, **keys):
    table = pa.table({"v": column, "a": np.arange(len(column)), "label": np.zeros(len(column))})
    data = DataConfig(dense={"a": {}, "v": {"width": WIDTH} | keys, "b": {"column": "a", "mean": 1.0}})
    return decode(Chunk(table.column, range(start, len(column))), data, (), order).numbers


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("kind", TYPES)
def test_vectors_of_every_type_are_columns_between_the_numbers(kind, keys):
    vectors = vectors_of()
    column = pa.array(vectors, TYPES[kind])
    order = np.random.default_rng(1).permutation(ROWS)
    found = decoded(column, **KEYS[keys])
    np.testing.assert_allclose(found[1:-3].T, expected(vectors, **KEYS[keys]), rtol=1e-6)
    assert found[0].tolist() == [*range(ROWS)]
    assert found[-3].tolist() == [row - 1 for row in range(ROWS)]
    np.testing.assert_array_equal(decoded(column, order, **KEYS[keys]), found[:, order])
    np.testing.assert_array_equal(decoded(column, start=70, **KEYS[keys]), found[:, 70:])


def test_a_column_without_a_vector_is_missing_everywhere():
    for column in (pa.nulls(3), pa.array([None] * 3, TYPES["fixed size"]), pa.array([None] * 3, TYPES["large list"])):
        assert (decoded(column, missing=2.5)[1:-3] == 2.5).all()


REFUSED = {
    "longer": ([[0.0] * 5, None, [1.0] * 6], r"^row 2, column 'v': 6 numbers, but data\.dense\.v\.width is 5; every"),
    "empty": ([[0.0] * 5, []], r"^row 1, column 'v': 0 numbers, but data\.dense\.v\.width is 5"),
    "NaN": ([None, [0.0, 1.0, float("nan"), 0.0, 0.0]], r"^row 1, column 'v': nan at place 2 has no finite value"),
    "infinity": ([[float("inf")] * 5], r"^row 0, column 'v': inf at place 0 has no finite value"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_refused_vectors(fault):
    vectors, message = REFUSED[fault]
    with pytest.raises(InputError, match=message):
        decoded(pa.array(vectors, pa.list_(pa.float32())))


REFUSED_TYPES = {
    "numbers": (pa.float32(), {"width": 5}, r"'v' is of type float, but data\.dense\.v\.width is 5; it must be a list"),
    "texts": (pa.list_(pa.string()), {"width": 5}, r"of type list<.*string>.*width is 5; it must be a list of numbers"),
    "another length": (pa.list_(pa.float32(), 7), {"width": 5}, r"'v' has vectors of 7 numbers, but .*; set it to 7"),
    "no width": (
        pa.list_(pa.float32()),
        {},
        r"it must be a number, a date or a time; for vectors, set data\.dense\.v\.w",
    ),
}


@pytest.mark.parametrize("fault", REFUSED_TYPES)
def test_refused_types(tmp_path, fault):
    dtype, keys, message = REFUSED_TYPES[fault]
    table = pa.table({"v": pa.array([None], dtype), "s": [1], "label": [0.0]})
    pq.write_table(table, tmp_path / "rows.parquet")
    data = DataConfig(dense={"v": keys}, sparse={"s": {"rows": 3}})
    with pytest.raises(InputError, match=message):
        find_files("data.train", [str(tmp_path)], data)


@pytest.mark.parametrize("transform", ["is_missing", "hour", "age"])
def test_a_transform_to_one_number_takes_no_width(transform):
    keys = {"width": 5, "transform": transform} | ({"now": "2026-01-31"} if transform == "age" else {})
    with pytest.raises(
        ValueError, match=rf"v\.width is 5, but data\.dense\.v\.transform is '{transform}', which makes"
    ):
        DataConfig(dense={"v": keys})


def write(folder, rows=ROWS, row_group_size=64):
    """Writes rows whose label depends on their vector."""
    folder.mkdir(parents=True)
    vectors, random = vectors_of(rows), np.random.default_rng(2)
    logits = (expected(vectors) - 29) @ np.linspace(-0.1, 0.3, WIDTH)
    columns = {
        "x": random.standard_normal(rows),
        "v": pa.array(vectors, TYPES["fixed size of half"]),
        "s": random.integers(0, 40, rows),
        "label": (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(float),
    }
    pq.write_table(pa.table(columns), folder / "part.parquet", row_group_size=row_group_size)
    return folder


DENSE = {"v": {"width": WIDTH, "mean": 29.0, "std": 18.0, "missing": 29.0}, "x": {}}


def config(folder, **changes):
    tree = plain_config(folder, **changes)
    tree["data"] |= {"dense": DENSE, "sparse": {"s": {"rows": 40}}, "global_batch_size": 16}
    if tree["model"].get("name") == "deepfm":
        del tree["model"]["dense_layers"]
    return tree


def batches(tree, rank=0, ranks=1, steps=range(12)):
    data = Config.model_validate(tree).data
    files = find_files("data.train", data.train, data)
    lanes = Lanes(files.rows, 2, 16)
    return [
        one.dense.numpy() for one in Loader(files, data, lanes, rank, ranks, 0, True).batches(steps.start, steps.stop)
    ]


def test_a_step_has_the_same_vectors_on_any_number_of_ranks_and_when_resumed(tmp_path):
    tree = config(write(tmp_path / "train"))
    alone = batches(tree)
    assert alone[0].shape == (16, WIDTH + 1)
    of_ranks = zip(*(batches(tree, rank, 2) for rank in range(2)), strict=True)
    for one, parts in zip(alone, of_ranks, strict=True):
        np.testing.assert_array_equal(one, np.concatenate(parts))
    for one, again in zip(alone[5:], batches(tree, steps=range(5, 12)), strict=True):
        np.testing.assert_array_equal(one, again)


def test_vectors_of_text_files_are_those_of_parquet(tmp_path):
    lines = ["v,s,label", "1.5|-2|3|0|0.25,1,0", ",2,1"]
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    tree = plain_config(tmp_path, data__reader="csv", data__csv={"cache": str(tmp_path / "cache")})
    tree["data"] |= {"dense": {"v": {"width": 5, "missing": 9.0}}, "sparse": {"s": {"rows": 3}}}
    batch = batches(tree, steps=range(1))[0]
    assert sorted(batch.tolist())[-2:] == [[1.5, -2.0, 3.0, 0.0, 0.25], [9.0] * 5]
    (tmp_path / "rows.csv").write_text("\n".join([*lines, "1|2|x|4|5,0,1"]) + "\n")
    with pytest.raises(InputError, match=r"rows\.csv, line 4.*'v'.*'1\|2\|x\|4\|5' is not a list of numbers"):
        batches(tree, steps=range(1))


MODELS = ("dlrm", "deepfm")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs with vectors on 1 and 2 ranks, and a run that is stopped and resumed."""
    folder = tmp_path_factory.mktemp("runs")
    data = write(folder / "train")
    trees = {name: config(data, model__name=name, train__steps=14) for name in MODELS}
    half = {**trees["dlrm"], "train": {"steps": 7}}
    resumed = [{"config": half, "out": str(folder / "resumed")}]
    resumed += [{"config": trees["dlrm"], "out": str(folder / "resumed"), "resume": True}]
    for ranks in (1, 2):
        jobs = [{"config": tree, "out": str(folder / f"{name}-{ranks}")} for name, tree in trees.items()]
        launch(jobs + (resumed if ranks == 1 else []), ranks, folder)
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_training_is_the_same_on_any_number_of_ranks(runs, name):
    alone = losses(runs / f"{name}-1")
    np.testing.assert_allclose(losses(runs / f"{name}-2"), alone, rtol=2e-5)
    assert np.mean(alone[-4:]) < np.mean(alone[:4])


def test_a_resumed_run_is_undisturbed(runs):
    assert losses(runs / "resumed") == losses(runs / "dlrm-1")


def test_a_vector_of_another_length_ends_training_in_one_line(tmp_path, capfd):
    folder = write(tmp_path / "train")
    table = pq.read_table(folder / "part.parquet")
    vectors = [*table["v"].cast(pa.list_(pa.float32())).to_pylist()]
    vectors[150] = [1.0, 2.0]
    pq.write_table(table.set_column(1, "v", pa.array(vectors)), folder / "part.parquet")
    (tmp_path / "config.toml").write_text(tomli_w.dumps(config(folder)))
    assert trainer(["train", str(tmp_path / "config.toml"), "--out", str(tmp_path / "out")]) == 2
    message = capfd.readouterr().err
    assert "part.parquet, row group 0, row 150, column 'v': 2 numbers, but data.dense.v.width is 5" in message
    assert "Traceback" not in message


def test_a_history_is_no_vector():
    history = {"log": "log", "user": "s", "time": "t", "length": 5, "columns": {"v": "rating"}}
    with pytest.raises(
        ValueError, match=r"data\.dense\.x\.width is 5, but data\.history\.columns makes 'v', whose lists"
    ):
        DataConfig(dense={"x": {"column": "v", "width": 5}}, sparse={"s": {"rows": 3}}, history=history)
