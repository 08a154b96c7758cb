"""Vectors in a data check: a first configuration that trains on them, planted faults, figures, and text files."""

import json
import re
import tomllib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

from trainer.__main__ import main as trainer

ROWS, WIDTH = 1500, 6


def vectors_of(seed):
    return np.random.default_rng(seed).normal(2, 3, (ROWS, WIDTH)).astype(np.float16)


def with_nulls(vectors):
    return [None if row % 10 == 9 else list(map(float, vector)) for row, vector in enumerate(vectors)]


def write(folder, change=lambda rows: rows, dtype=None):
    """Writes two splits; `change` plants a fault in the vectors to train on."""
    for seed, split in enumerate(("train", "validation")):
        (folder / split).mkdir(parents=True)
        vectors, random = vectors_of(seed), np.random.default_rng(seed)
        rows = with_nulls(vectors)
        columns = {
            "v": pa.array(change(rows) if split == "train" else rows, dtype or pa.list_(pa.float16())),
            "ratings": pa.array([[0.5] * (row % 4) for row in range(ROWS)]),
            "item": random.integers(0, 30, ROWS),
            "label": (vectors[:, 0] + random.normal(0, 2, ROWS) > 2).astype(int),
        }
        pq.write_table(pa.table(columns), folder / split / "part.parquet", row_group_size=400)
    return folder


def check(*words):
    assert trainer(["check-data", *map(str, words)]) == 0


def test_a_first_configuration_has_the_vector_and_trains_on_it(tmp_path, capfd):
    data, config = write(tmp_path / "data"), tmp_path / "first.toml"
    check(
        "--source", data, "--write-config", config, "--json", tmp_path / "found.json", "--page", tmp_path / "page.html"
    )
    tree = tomllib.loads(config.read_text())
    whole = np.concatenate([one for one in with_nulls(vectors_of(0)) if one])
    feature = tree["data"]["dense"]["v"]
    assert feature["width"] == WIDTH
    assert feature["mean"] == feature["missing"] == pytest.approx(whole.mean(), rel=1e-3)
    assert feature["std"] == pytest.approx(whole.std() * WIDTH**0.5, rel=1e-3)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["left_out"] == {"ratings": "lists of 0 to 3 numbers; vectors have one length"}
    column = found["columns"]["v"]
    assert (column["as"], column["nulls"], column["lengths"]) == ("dense", ROWS // 10, {str(WIDTH): 2 * ROWS * 9 // 10})
    np.testing.assert_allclose([column["minimum"], column["maximum"]], [whole.min(), whole.max()])
    assert f"{WIDTH} numbers: " in capfd.readouterr().out
    assert f"{WIDTH} numbers: " in (tmp_path / "page.html").read_text()
    words = ("--train.epochs", "8", "--report.tensorboard", "False")
    assert trainer(["train", str(config), "--out", str(tmp_path / "run"), *words]) == 0
    last = json.loads((tmp_path / "run/evaluations.jsonl").read_text().splitlines()[-1])
    assert last["auc"] > 0.7  # which nothing but the vector can tell


FAULTS = {
    "another length": (lambda rows: [*rows[:-1], [1.0] * 4], "vector length", r"1 list of 4 numbers, of 1,500 rows"),
    "lengths": (lambda rows: [[], [1.0], *rows[2:]], "vector length", r"2 lists of 0 to 1 numbers"),
    "NaN": (lambda rows: [[float("nan")] * WIDTH, *rows[1:]], "not a number", "6 numbers NaN or infinite in float32"),
    "beyond float32": (lambda rows: [[1e39] * WIDTH, *rows[1:]], "not a number", "6 numbers NaN or infinite"),
    "constant": (lambda rows: [[0.5] * WIDTH for _ in rows], "constant", "every number is 0.5"),
    "no vector": (lambda rows: [None for _ in rows], "all null", "none of 1,500 rows has a vector"),
    "few": (lambda rows: [*rows[:100], *[None] * (ROWS - 100)], "mostly null", "of the rows have no vector"),
}


def configured(folder, data, **feature):
    tree = {
        "data": {
            "train": [str(data / "train")],
            "validation": [str(data / "validation")],
            "dense": {"text": {"column": "v", "width": WIDTH} | feature},
            "sparse": {"item": {"rows": 30}},
        }
    }
    (folder / "config.toml").write_text(tomli_w.dumps(tree))
    return folder / "config.toml"


def found_in(folder, config):
    check(config, "--json", folder / "found.json")
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_of_vectors(tmp_path, fault):
    change, name, words = FAULTS[fault]
    data = write(tmp_path / "data", change, pa.list_(pa.float64()))
    found = found_in(tmp_path, configured(tmp_path, data, mean=2.0, std=3.0))
    planted = [one for one in found["findings"] if one["column"] == "v"]
    assert [(one["check"], one["where"]) for one in planted] == [(name, "train")]
    assert re.search(words, planted[0]["found"])


def test_vectors_without_a_fault_get_better_means_where_theirs_are_off(tmp_path):
    data = write(tmp_path / "data")
    found = found_in(tmp_path, configured(tmp_path, data, mean=50.0))
    assert [one for one in found["findings"] if one["column"] == "v"] == []
    better = {one["key"]: one["value"] for one in found["suggestions"] if "text" in one["key"]}
    assert better["data.dense.text.mean"] == pytest.approx(2.0, abs=0.1)
    assert better["data.dense.text.std"] == pytest.approx(3.0 * WIDTH**0.5, abs=0.2)


def test_a_transform_of_a_negative_number_is_found(tmp_path):
    data = write(tmp_path / "data")
    found = found_in(tmp_path, configured(tmp_path, data, transform="log1p"))
    planted = [one["check"] for one in found["findings"] if one["column"] == "v" and one["severity"] == "error"]
    assert planted == ["transform", "transform"]


def test_vectors_of_text_files_are_guessed(tmp_path):
    lines = [
        "v,item,label",
        *(f"{row / 7:.3f}|-0.5|{row % 3},{row % 20},{int(row * 7919 % 13 > 5)}" for row in range(600)),
    ]
    (tmp_path / "train.csv").write_text("\n".join(lines) + "\n")
    check("--source", tmp_path / "train.csv", "--write-config", tmp_path / "first.toml")
    assert tomllib.loads((tmp_path / "first.toml").read_text())["data"]["dense"]["v"]["width"] == 3
    words = ["--train.epochs", "1", "--report.tensorboard", "False"]
    assert trainer(["train", str(tmp_path / "first.toml"), "--out", str(tmp_path / "run"), *words]) == 0
