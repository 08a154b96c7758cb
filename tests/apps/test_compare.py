"""`python -m trainer compare` puts runs side by side."""

import json
import re
import shutil
import tomllib

import numpy as np
import pytest
import tomli_w
from browser import NEEDS, chart_of, opened, with_a_browser
from command import run_trainer, write_config
from jobs import config

from trainer.__main__ import main as trainer


@pytest.fixture(scope="module")
def runs(rows, tmp_path_factory):
    """Three runs that differ in their seed, the last also in its learning rate and its layers."""
    folder = tmp_path_factory.mktemp("runs")
    tree = config(rows, data__validation=[str(rows)], data__test=[str(rows)], evaluate__every_steps=2, train__steps=6)
    file = write_config(folder / "config.toml", tree)
    changes = {"a": (), "b": (), "c": ("--optimizer.dense.learning_rate", "0.5", "--model.over_layers", "8", "4")}
    for seed, (name, words) in enumerate(changes.items()):
        flags = ("--train.seed", seed, "--report.interval_steps", "2", *words)
        done = run_trainer("train", file, "--out", folder / "all" / name, *flags)
        assert done.returncode == 0, done.stderr
    return folder / "all"


@pytest.fixture
def compared(runs, capsys):
    """Compares runs by name; returns the tables by title, each by its first column."""

    def compare(*names, flags=()):
        assert trainer(["compare", "--runs", *(str(runs / name) for name in names), *map(str, flags)]) == 0
        tables = {}
        for block in capsys.readouterr().out.split("\n\n"):
            title, _, rule, *lines = [*block.splitlines(), "", "", ""]
            width = [match.start() for match in re.finditer(r"-+", rule)]
            cells = [
                [line[a:b].strip() for a, b in zip(width, [*width[1:], None], strict=True)] for line in lines if line
            ]
            tables[title] = {first: rest for first, *rest in cells}
        return tables

    return compare


def last(runs, name, split, metric):
    lines = [json.loads(line) for line in (runs / name / "evaluations.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split][-1][metric]


def test_metrics_are_the_last_of_each_run_with_the_best_marked(compared, runs):
    tables = compared("a", "b", "c")
    for row, (split, metric, best) in {
        "validation auc": ("validation", "auc", max),
        "test log_loss": ("test", "log_loss", min),
        "test calibration": ("test", "calibration", None),
    }.items():
        values = [last(runs, name, split, metric) for name in "abc"]
        stars = [" *" if best and value == best(values) else "" for value in values]
        assert tables["Metrics"][row] == [f"{value:.5f}{star}" for value, star in zip(values, stars, strict=True)]
    assert not [row for row in tables["Metrics"] if "error" in row or "samples" in row]
    assert tables["Runs"]["state"] == ["finished"] * 3
    assert tables["Runs"]["step"] == ["6"] * 3


def test_what_differs_is_what_was_changed(compared):
    assert compared("a", "b", "c")["Differs"] == {
        "train.seed": ["0", "1", "2"],
        "optimizer.dense.learning_rate": ["0.1", "0.1", "0.5"],
        "model.over_layers": ["[16]", "[16]", "[8, 4]"],
    }


def test_runs_on_other_rows_have_no_star(compared, runs, capsys):
    """The configuration of a run is a file: another one stands for a run of another version, on other rows."""
    tree = tomllib.loads((runs / "a" / "config.toml").read_text())
    tree["data"]["test"] = ["elsewhere"]
    tree["data"]["sparse"]["new"] = {"rows": 8}
    del tree["train"]["stop_early"]  # a key that an earlier version lacks
    shutil.copytree(runs / "a", runs / "other", dirs_exist_ok=True)
    (runs / "other" / "config.toml").write_text(tomli_w.dumps(tree))
    tables = compared("a", "other", "c")
    shutil.rmtree(runs / "other")
    assert not [cell for cell in tables["Metrics"]["test auc"] if "*" in cell]
    assert [cell for cell in tables["Metrics"]["validation auc"] if "*" in cell]
    assert "Metrics of test have no star, as the runs differ in data.test." in str(tables)
    differs = tables["Differs"]
    assert differs["data.test"][1] == '["elsewhere"]'
    assert differs["data.sparse"][1].split(", ")[-1] == "new"
    assert not [key for key in differs if "stop_early" in key or key.startswith("data.sparse.")]


def test_runs_that_differ_in_their_seed_have_a_spread(compared, runs):
    tables = compared("a", "b", "c")
    values = [last(runs, name, "test", "auc") for name in "ab"]
    assert tables["Spread of seeds"]["test auc"] == [f"{np.mean(values):.5f} ± {np.std(values, ddof=1):.5f}"]
    assert "Spread of seeds" not in compared("a", "c")


def test_the_page_has_the_tables_and_curves_and_needs_nothing(compared, tmp_path):
    compared("a", "b", "c", flags=("--page", tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    assert not NEEDS.search(text)
    for title in ("Runs", "Metrics", "Spread of seeds", "Differs", "Curves"):
        assert f"<h2>{title}</h2>" in text
    for title in ("loss", "auc", "samples_per_second"):
        assert f"<h3>{title}</h3>" in text
    curves, _ = chart_of(text, "auc")
    assert {name: one["x"] for name, one in curves.items()} == {name: [2, 4, 6] for name in "abc"}


def test_one_run_alone_has_a_page(compared, tmp_path):
    tables = compared("a", flags=("--page", tmp_path / "page.html"))
    assert tables.keys() >= {"Runs", "Metrics"}
    assert "*" not in str(tables)
    assert "<h1>a</h1>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "nosuch"], "--runs has 'RUNS/nosuch', where there is no run; name a directory that train wrote"),
        (["a", "a"], "--runs has 'RUNS/a' twice; name each run once"),
    ],
)
def test_what_is_no_run_is_one_line(runs, capsys, words, message):
    assert trainer(["compare", "--runs", *(str(runs / word) for word in words)]) == 2
    assert capsys.readouterr().err == f"error: {message.replace('RUNS', str(runs))}\n"


@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(compared, tmp_path, width):
    compared("a", "b", "c", flags=("--page", tmp_path / "page.html"))
    _, image = opened(tmp_path / "page.html", width)
    colors = {pixel for _, pixel in image.getcolors(maxcolors=2**24)}
    assert {(0x1F, 0x6F, 0xB4), (0xE0, 0x7B, 0x39), (0x3A, 0x9C, 0x5F)} <= colors  # a curve of each run
