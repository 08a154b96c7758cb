"""The page of a run, while it trains and after it was killed and resumed."""

import json
import re

import pyarrow.parquet as pq
import pytest
from browser import opened, with_a_browser
from command import run_trainer, write_config
from jobs import config
from trainer_process import Gate, Training, committed

from trainer.pages.figures import Lines
from trainer.pages.html import MOST_POINTS, draw_figure

TITLES = ("Run", "Metrics", "loss", "auc", "rate/dense", "samples_per_second", "data_wait", "memory_gib", "Starts")
TITLES += ("Checkpoints", "Plan", "Environment", "Configuration")


def rows_of(page, title):
    """The cells of a table, row by row, without its header."""
    text = page[page.index(f"<h2>{title}</h2>") :]
    rows = re.findall(r"<tr>(.*?)</tr>", text[: text.index("</table>")])
    return [re.findall(r"<td>(.*?)</td>", row) for row in rows[1:]]


@pytest.fixture(scope="module")
def killed(rows, tmp_path_factory):
    """A run that was killed after its first evaluation, and went on; the page before, and the directory."""
    folder = tmp_path_factory.mktemp("page")
    evaluated = -(-pq.read_table(rows).num_rows // 64)
    gate = Gate(folder / "gate", 4 + evaluated + 1)
    changes = {"data__validation": [str(rows)], "evaluate__every_steps": 4, "checkpoint__every_steps": 4}
    tree = config(rows, train__steps=12, model__name="custom:gated", **changes)
    file, out = write_config(folder / "config.toml", tree), folder / "mine"
    job = Training(file, out, ranks=0, **gate.environment)
    job.wait_until(lambda: (out / "run.html").exists() and committed(out) == [4], seconds=60)
    job.kill()
    before = (out / "run.html").read_text()
    gate.open()
    again = Training(file, out, ranks=0, **gate.environment)
    again.end()
    assert again.code == 0, again.output()
    return before, out


def test_it_is_written_at_each_evaluation(killed):
    before, _ = killed
    assert dict(rows_of(before, "Run"))["state"] == "running"
    assert dict(rows_of(before, "Run"))["step"] == "4"
    assert len(rows_of(before, "Starts")) == 1


def test_at_the_end_it_has_all_that_the_directory_tells(killed):
    _, out = killed
    page = (out / "run.html").read_text()
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import", page)
    assert [title for title in TITLES if f"<h2>{title}</h2>" not in page] == []
    assert dict(rows_of(page, "Run"))["state"] == "finished"
    assert dict(rows_of(page, "Configuration"))["model.name"] == "custom:gated"
    saved = sorted(folder.name for folder in (out / "checkpoints").iterdir())
    assert [url.rpartition("/")[2] for _, url in rows_of(page, "Checkpoints")] == saved
    last = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()][-1]
    assert dict(rows_of(page, "Metrics"))["validation auc"] == f"{last['auc']:.5f}"
    (_, first, *_, ended), (_, second, ranks, _, why) = rows_of(page, "Starts")
    assert (first, ended, second, ranks) == ("0", "", "4", "1")
    assert "without a word" in why


def test_a_single_run_that_is_compared_has_the_same_page(killed, tmp_path):
    _, out = killed
    done = run_trainer("compare", "--runs", out, "--page", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").read_text() == (out / "run.html").read_text()


def test_a_long_curve_keeps_its_spikes_and_its_ends():
    steps = [*range(1, 50_001)]
    values = [float(step == 31_416) for step in steps]
    drawn = draw_figure(Lines("loss", "", {"mine": (steps, values)}))
    (line,) = re.findall(r'points="([^"]*)"', drawn)
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    assert len(points) <= MOST_POINTS
    assert [x for x, y in points if y == 0] == [pytest.approx(628.3, abs=0.1)]
    assert points[0][0] == pytest.approx(0, abs=1)
    assert points[-1][0] == pytest.approx(1000, abs=1)


@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(killed, tmp_path, width):
    _, out = killed
    (tmp_path / "run.html").write_text((out / "run.html").read_text())
    opened(tmp_path / "run.html", width)
