"""The page of a sweep: complete, self-contained, and as wide as a real browser's window."""

import re
from pathlib import Path

import pytest
from browser import opened, with_a_browser
from optuna.trial import TrialState
from PIL import Image

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
    assert not re.search(r"<script[^>]+src=|<link|<img", text)
    assert text.count("<tr>") == 13
    assert "<td>&lt;b&gt;0.5&lt;/b&gt;</td>" in text
    for title in ("Trials", "What each trial reached", "Values and what came of them", "Importance of each key"):
        assert f"<h2>{title}</h2>" in text


@pytest.mark.few(1, "one width stands for all")
@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(page, width):
    document, image = opened(page, width)
    assert document.count('class="trace scatter') >= 12
    assert document.count('class="plotly-graph-div js-plotly-plot"') == 3
    small = image.resize((100, 400), Image.Resampling.NEAREST)
    assert sum(pixel == (0xE5, 0xEC, 0xF6) for pixel in small.getdata()) > 1000  # grounds of the drawings
