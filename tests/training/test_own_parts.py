"""A model, a loss and a metric of one's own, those of docs/guides/own_tasks.md, in a directory of one's own."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import run_trainer

PAGE = (Path(__file__).parents[2] / "docs/guides/own_tasks.md").read_text()
MOST_LINES = 20
FAILURE = '{indent}raise ArithmeticError("a bug in the {part}")\n'
FIRST_LINES = {
    "model": "        pooled = self.tables(sparse)\n",
    "loss": "    return (1 - (2 * label - 1) * prediction).clamp(min=0)\n",
    "metric": "        right = ((prediction > 0) == (label > 0.5)).double()\n",
}


def shown(name: str) -> str:
    """Returns a file that the page asks to save."""
    return re.search(rf"^```\w+\n(# {re.escape(name)}\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory with the files of the page and data for them, far from the trainer's, as the current one."""
    random = np.random.default_rng(0)
    folder = tmp_path / "data/mine"
    folder.mkdir(parents=True)
    for split in ("train", "validation"):
        clicked = random.integers(0, 2, 256).astype(np.float32)
        columns = {
            "price": random.random(256).astype(np.float32),
            "country": [f"country {number}" for number in random.integers(0, 9, 256)],
            "item": random.integers(0, 5000, 256),
            "clicked": clicked,
            "bought": clicked * random.integers(0, 2, 256).astype(np.float32),
        }
        pq.write_table(pa.table(columns), folder / f"{split}.parquet", row_group_size=64)
    for name in ("my_tasks.py", "my_tasks.toml"):
        (tmp_path / name).write_text(shown(name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_takes_less_than_twenty_lines():
    parts = [part for part in ast.parse(shown("my_tasks.py")).body if isinstance(part, ast.ClassDef | ast.FunctionDef)]
    assert [part.name for part in parts] == ["TwoHeads", "hinge", "Accuracy"]
    assert [part.name for part in parts if part.end_lineno - part.lineno + 1 >= MOST_LINES] == []


def test_they_are_found_where_the_trainer_is_started(directory):
    done = run_trainer("train", "my_tasks.toml", "--out", "out", ranks=2, seconds=300)
    assert done.returncode == 0, done.stderr
    last = json.loads((directory / "out/evaluations.jsonl").read_text().splitlines()[-1])
    assert 0 <= last["accuracy/clicked"] <= 1
    assert "auc/bought" in last


def plant_a_bug(directory, part):
    line = FIRST_LINES[part]
    bug = FAILURE.format(indent=re.match(" *", line)[0], part=part)
    source = (directory / "my_tasks.py").read_text()
    assert line in source
    (directory / "my_tasks.py").write_text(source.replace(line, bug + line))


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize("part", FIRST_LINES)
def test_a_bug_is_shown_with_its_traceback_and_its_rank(directory, part):
    plant_a_bug(directory, part)
    done = run_trainer("train", "my_tasks.toml", "--out", "out", ranks=2, seconds=300)
    assert done.returncode == 1
    assert re.search(r"rank\s*:?\s*[01]\b", done.stderr)
    for words in ("Traceback", "my_tasks.py", f"ArithmeticError: a bug in the {part}"):
        assert words in done.stderr


def test_a_bug_on_all_ranks_leaves_the_save_in_the_background_whole(directory):
    plant_a_bug(directory, "metric")  # when the last step is evaluated, while it is saved
    flags = ("--data.sparse.item.rows", 200_000)  # that takes a while
    done = run_trainer("train", "my_tasks.toml", "--out", "out", *flags, ranks=2, seconds=300)
    assert (done.returncode, "a bug in the metric" in done.stderr) == (1, True)
    (saved,) = (directory / "out/checkpoints").iterdir()
    assert (saved / "manifest.json").exists()
    assert {file.name for file in saved.glob("*.distcp")} == {"__0_0.distcp", "__1_0.distcp"}
