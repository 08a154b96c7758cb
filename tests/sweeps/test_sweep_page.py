"""The page of a sweep: complete, self-contained, and as wide as a real browser's window."""

from pathlib import Path

import pytest
from browser import NEEDS, chart_of, opened, with_a_browser
from optuna.trial import TrialState

from torchx_recsys.sweeps.file import read_sweep
from torchx_recsys.sweeps.page import write_page
from torchx_recsys.sweeps.study import Study

FILE = """
out = "{out}"
[arguments]
config = "movielens_deepfm"
trainer_args = ["--evaluate.every_steps", "20"]
[space]
optimizer.dense.learning_rate = {{ log = [1e-4, 1e-1] }}
model.embedding_dim = {{ range = [8, 32], step = 8 }}
model.over_layers = [[64], [64, 32]]
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """The page of twelve trials, of which two were stopped early."""
    folder = tmp_path_factory.mktemp("sweep")
    (folder / "s.toml").write_text(FILE.format(out=folder / "out"))
    study = Study(read_sweep(str(folder / "s.toml")))
    for number in range(12):
        trial = study.ask()
        reached = {step: 0.5 + step / 1000 + trial.params["optimizer.dense.learning_rate"] for step in (20, 40, 60)}
        study.report(trial, reached)
        study.end(trial, TrialState.COMPLETE if number < 10 else TrialState.PRUNED, reached[60])
    rows = [[str(trial.number), "done", "<b>0.5</b>"] for trial in study.ranked()]
    write_page(folder / "sweep.html", "auc", ["trial", "", "auc"], rows, study)
    return folder / "sweep.html"


def test_the_page_has_everything_and_needs_nothing(page):
    text = page.read_text()
    assert not NEEDS.search(text)
    assert text.count("<tr>") == 13
    assert "<td>&lt;b&gt;0.5&lt;/b&gt;</td>" in text
    assert "<h2>Trials</h2>" in text
    assert "<h3>Importance of each key</h3>" in text
    curves, _ = chart_of(text, "What each trial reached")
    assert {name: one["x"] for name, one in curves.items()} == {f"trial {n}": [20, 40, 60] for n in range(12)}
    found, chart = chart_of(text, "model.embedding_dim")
    assert {name: len(one["x"]) for name, one in found.items()} == {"done": 10, "others": 2}
    assert {x for one in found.values() for x in one["x"]} <= {8, 16, 24, 32}
    assert not chart["log"]
    assert chart_of(text, "optimizer.dense.learning_rate")[1]["log"]
    found, chart = chart_of(text, "model.over_layers")
    assert chart["names"] == ["64", "64 32"]
    assert {x for one in found.values() for x in one["x"]} <= {0, 1}


@pytest.mark.few(1, "one width stands for all")
@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(page, width):
    document, image = opened(page, width)
    assert document.count('<div class="u-wrap"') == 4
    colors = {pixel for _, pixel in image.getcolors(maxcolors=2**24)}
    assert {(0x1F, 0x6F, 0xB4), (0xE0, 0x7B, 0x39)} <= colors
