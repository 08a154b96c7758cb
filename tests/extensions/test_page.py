"""The page of a run, while it trains and after it was killed and resumed."""

import json
import re
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from browser import NEEDS, chart_of, opened, with_a_browser
from command import run_trainer, write_config
from jobs import config
from trainer_process import Gate, Training, committed

from trainer.extensions.page.recorded import Run
from trainer.pages.charts import MOST_POINTS, draw_chart
from trainer.pages.figures import Lines

TITLES = ("Metrics", "Curves", "Starts", "Checkpoints", "Plan", "Environment", "Configuration")
CHARTS = ("loss", "auc", "samples_per_second", "data_wait")
BASELINES = {"label rate": 0.5, "<b>trees</b>": 0.25}


def rows_of(page, title):
    """The cells of a table, row by row, without its header."""
    text = page[page.index(f"<h2>{title}</h2>") :]
    rows = re.findall(r"<tr>(.*?)</tr>", text[: text.index("</table>")])
    return [re.findall(r"<td>(.*?)</td>", row) for row in rows[1:]]


def facts_of(page):
    """The facts at the head of a page."""
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))


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
    assert facts_of(before)["state"] == "running"
    assert facts_of(before)["step"] == "4"
    assert len(rows_of(before, "Starts")) == 1


def test_at_the_end_it_has_all_that_the_directory_tells(killed):
    _, out = killed
    page = (out / "run.html").read_text()
    assert not NEEDS.search(page)
    assert [title for title in TITLES if f"<h2>{title}</h2>" not in page] == []
    assert [title for title in CHARTS if f"<h3>{title}</h3>" not in page] == []
    facts = facts_of(page)
    assert (facts["state"], facts["model"]) == ("finished", "custom:gated")
    assert {"started", "duration", "data", "parameters"} <= facts.keys()
    assert dict(rows_of(page, "Configuration"))["model.name"] == "custom:gated"
    saved = sorted(folder.name for folder in (out / "checkpoints").iterdir())
    assert [url.rpartition("/")[2] for _, url in rows_of(page, "Checkpoints")] == saved
    last = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()][-1]
    (auc,) = (row for row in rows_of(page, "Metrics") if row[0] == "auc")
    assert auc[1] == f"{last['auc']:.5f}"
    (_, first, *_, ended), (_, second, ranks, _, why) = rows_of(page, "Starts")
    assert (first, ended, second, ranks) == ("0", "", "4", "1")
    assert "without a word" in why


def test_a_single_run_that_is_compared_has_the_same_page(killed, tmp_path):
    _, out = killed
    done = run_trainer("compare", "--runs", out, "--page", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").read_text() == (out / "run.html").read_text()


def test_training_and_validation_are_one_chart_with_the_best_marked(killed):
    _, out = killed
    page = (out / "run.html").read_text()
    curves, _ = chart_of(page, "loss")
    lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    assert curves["validation"]["x"] == [line["step"] for line in lines]
    best = min(lines, key=lambda line: line["log_loss"])
    assert curves["validation"]["best"] == [best["step"], pytest.approx(best["log_loss"], rel=1e-5)]
    assert "<h3>log_loss</h3>" not in page
    assert "<h3>rate/dense</h3>" not in page
    assert "rate/dense 0.1" in page  # constant, so named instead
    assert chart_of(page, "calibration")[1]["levels"] == [{"name": "ideal", "value": 1.0, "color": "#7a828b"}]


def test_predictions_are_drawn_beside_labels(killed):
    _, out = killed
    curves, _ = chart_of((out / "run.html").read_text(), "observed over predicted")
    found = json.loads((out / "calibration.json").read_text())["validation"]
    last = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()][-1]
    task = found["tasks"]["label"]
    assert found["step"] == last["step"]
    assert sum(task["weight"]) == pytest.approx(last["samples"])
    rates = [np.average(task[name], weights=task["weight"]) for name in ("observed", "predicted")]
    assert rates[0] == pytest.approx(last["label_rate"])
    assert rates[1] / rates[0] == pytest.approx(last["calibration"])
    assert curves["validation, step 12"]["x"] == pytest.approx(task["predicted"], rel=1e-5)
    assert curves["validation, step 12"]["y"] == pytest.approx(task["observed"], rel=1e-5)
    assert curves["as predicted"]["x"] == curves["as predicted"]["y"]


def test_what_later_commands_leave_in_the_directory_is_on_the_page(killed, tmp_path):
    out = shutil.copytree(killed[1], tmp_path / "mine")
    metrics = {"auc": BASELINES, "log_loss": BASELINES}
    (out / "baselines.json").write_text(json.dumps({"validation": {"label": metrics}}))
    features = [{"name": "item</script>", "drop": 0.25, "spread": 0.125}, {"name": "none", "drop": -0.5, "spread": 0.5}]
    found = {"split": "validation", "metric": "auc", "value": 0.75, "step": 12, "features": features}
    (out / "importance.json").write_text(json.dumps(found))
    lists = [{"user": "<i>ann", "rows": [["rank", "title"], ["1", "A & B"]]}]
    (out / "recommended.json").write_text(json.dumps({"step": 12, "lists": lists}))
    done = run_trainer("compare", "--runs", out, "--page", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert re.search(r"validation auc +\d\.\d+ +0.50000 label rate\n", done.stdout)
    page = (tmp_path / "page.html").read_text()
    assert {one["name"]: one["value"] for one in chart_of(page, "auc")[1]["levels"]} == BASELINES
    rows = rows_of(page, "Beside simple predictors, on data.validation")
    assert [name for name, *_ in rows] == ["mine", "label rate", "&lt;b&gt;trees&lt;/b&gt;"]
    assert "<b>trees" not in page
    assert "item&lt;/script&gt;" in page
    assert "0.25 ± 0.125" in page
    assert "<h3>user &lt;i&gt;ann</h3>" in page
    assert rows_of(page, "Recommended, at step 12") == [["1", "A &amp; B"]]
    (out / "baselines.json").write_text("[")
    assert run_trainer("compare", "--runs", out).returncode == 0


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        ([10, 20, 30, 31], [10, 20, 30]),  # the end of training
        ([10, 20, 21, 30, 40], [10, 20, 30, 40]),  # the end of a segment
        ([5], [5]),
        ([5, 10, 15, 19], [5, 10, 15, 19]),
    ],
)
def test_an_interval_that_is_cut_short_is_no_spike(steps, kept):
    metrics = {"step": np.array(steps), "loss": np.ones(len(steps))}
    assert Run("mine", {}, {}, metrics, []).reported("loss")[0].tolist() == kept


def test_a_long_curve_keeps_its_spikes_and_its_ends():
    steps = [*range(1, 50_001)]
    values = [float(step == 31_416) for step in steps]
    mine = chart_of(draw_chart(Lines("loss", "", {"mine": (steps, values)})), "loss")[0]["mine"]
    assert len(mine["x"]) <= MOST_POINTS
    assert [x for x, y in zip(mine["x"], mine["y"], strict=True) if y] == [31_416]
    assert mine["x"][0] == pytest.approx(0, abs=100)
    assert mine["x"][-1] == pytest.approx(50_000, abs=100)


@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(killed, tmp_path, width):
    _, out = killed
    (tmp_path / "run.html").write_text((out / "run.html").read_text())
    document, _ = opened(tmp_path / "run.html", width)
    assert '<div class="u-wrap"' in document  # uPlot has drawn
    tip = re.search(r'<div class="tip" style[^>]*>(.*?)</div></div>', document)[1]
    assert re.search(r"step \d+</div>.*training <b>0\.\d+</b>.*validation <b>0\.\d+</b>", tip)
