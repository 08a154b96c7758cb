"""`python -m trainer segments` watches a run over segments."""

import json
import re
import shutil
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow.parquet as pq
import pytest
from browser import NEEDS, chart_of, opened, with_a_browser
from command import write_config
from jobs import config, write_rows

from torchx_recsys.apps.runs.watched_segments import end_of
from trainer.__main__ import main as trainer

DAYS = [f"2026-11-{day}" for day in range(21, 26)]
ROWS = 200
RULES = {"label_rate_by": 1.5}


def run(*words, code=0):
    assert trainer([str(word) for word in words]) == code


def lines_of(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A run over five days with managed ids, whose exports end with a refusal: the last day has no clicks."""
    folder = tmp_path_factory.mktemp("watched")
    for seed, day in enumerate(DAYS):
        write_rows(folder / day, [ROWS], seed)
    file = folder / DAYS[-1] / "part-00.parquet"
    table = pq.read_table(file)
    place = table.schema.get_field_index("label")
    pq.write_table(table.set_column(place, "label", [np.zeros(ROWS, np.float32)]), file)
    changes = {"data__segments": {"path": f"{folder}/{{segment}}"}, "checkpoint__keep": {"newest": 9}}
    tree = config(folder, publish=RULES, evaluate={"metrics": ["log_loss", "label_rate"]}, **changes)
    del tree["data"]["train"], tree["train"]["steps"]
    tree["data"]["sparse"]["s0"] = {"rows": 300, "ids": "managed"}
    write_config(folder / "config.toml", tree)
    for until, code in zip(DAYS[-2:], (0, 2), strict=True):
        run("train", folder / "config.toml", "--out", folder / "run", "--data.segments.until", until)
        export = ("export", folder / "config.toml", "--out", folder / "run", "--to", folder / "exports")
        run(*export, code=code)
    return folder


@pytest.fixture
def table(watched, capfd):
    """Asks for the table, by flags; returns its rows, each cell by its header."""

    def ask(*flags, folder=watched, out="run"):
        capfd.readouterr()
        run("segments", folder / "config.toml", "--out", folder / out, *flags)
        header, rule, *lines = capfd.readouterr().out.partition("\n\n")[0].splitlines()
        spans = [match.span() for match in re.finditer(r"-+", rule)]
        names = [header[first:last].strip() for first, last in spans]
        ends = [first for first, _ in spans[1:]] + [None]
        return [
            dict(
                zip(names, (line[first:end].strip() for (first, _), end in zip(spans, ends, strict=True)), strict=True)
            )
            for line in lines
        ]

    return ask


def test_it_has_what_the_run_the_data_and_the_exports_tell(watched, table):
    rows = table("--to", watched / "exports")
    lines, metrics = lines_of(watched / "run/segments.jsonl"), lines_of(watched / "run/metrics.jsonl")
    assert [row["segment"] for row in rows] == DAYS
    assert [row["log_loss"] for row in rows] == [f"{line['before']['log_loss']:.5f}" for line in lines]
    ids = [{*pq.read_table(watched / day)["s0"].to_pylist()} for day in DAYS]
    new = [len(some - set().union(*ids[:place])) for place, some in enumerate(ids)]
    assert [row["new s0"] for row in rows] == [str(number) for number in new]
    assert [row["published"] for row in rows] == ["", "", "", "current", "refused by label_rate_by"]
    for day, line, row in zip(DAYS, lines, rows, strict=True):
        (done,) = [one["time"] for one in metrics if one["step"] == line["step"]]
        ended = datetime.fromisoformat(f"{day}T00:00+00:00").timestamp() + 24 * 3600
        assert float(row["trained, hours after"].replace(",", "")) == pytest.approx((done - ended) / 3600, abs=0.06)
        assert bool(row["published, hours after"]) == (day != DAYS[-1])


def psi(expected, found):
    """The index of two lists of numbers, by tenths of the first, counted one by one."""
    edges = [-np.inf, *np.quantile(expected, np.arange(0.1, 0.95, 0.1)), np.inf]
    total = 0.0
    for low, high in pairwise(edges):
        then, now = (np.mean([low <= value < high for value in values]) for values in (expected, found))
        then, now = max(then, 1e-4), max(now, 1e-4)
        total += (now - then) * np.log(now / then)
    return total


def test_shifts_are_those_from_the_day_before(watched, table):
    rows = table()
    lines = {line["segment"]: line for line in lines_of(watched / "run/segments-shift.jsonl")}
    assert [*lines] == DAYS
    assert lines[DAYS[0]]["indices"] == {}
    for before, after, row in zip(DAYS[:-1], DAYS[1:], rows[1:], strict=True):
        found = lines[after]["indices"]
        assert found.keys() == {"d0", "d1", *(f"s{i}" for i in range(6))}
        then, now = (pq.read_table(watched / day)["d0"].to_numpy() for day in (before, after))
        assert found["d0"] == pytest.approx(psi(then, now), abs=1e-9)
        worst = max(found, key=found.__getitem__)
        assert row["shift"] == f"{worst} {found[worst]:.2f}"


def test_a_model_that_is_left_alone_is_evaluated_once_on_each_later_segment(watched, table, tmp_path):
    """On the segment after its own, a checkpoint is the model that the run evaluated there."""
    shutil.copytree(watched, tmp_path / "mine")
    mine, lines = tmp_path / "mine", lines_of(watched / "run/segments.jsonl")
    file = mine / "config.toml"
    file.write_text(file.read_text().replace(str(watched), str(mine)))
    for line in lines[1:3]:
        step = line["first_step"]
        rows = table("--static", step, folder=mine)
        cells = [row[f"log_loss of step {step}"] for row in rows]
        assert cells == ["" if one["first_step"] < step else cell for one, cell in zip(lines, cells, strict=True)]
        assert cells[line["number"]] == f"{line['before']['log_loss']:.5f}"
    first = table("--static", "first", folder=mine)
    kept = (mine / f"run/segments-static-{lines[0]['step']}.jsonl").read_text()
    for day in DAYS[:3]:  # what was evaluated is not evaluated again
        shutil.rmtree(mine / day)
    assert table("--static", "first", folder=mine) == first
    assert (mine / f"run/segments-static-{lines[0]['step']}.jsonl").read_text() == kept
    page = (mine / "run/segments.html").read_text()
    points = {title: len(one["x"]) for title, one in chart_of(page, "log_loss")[0].items()}
    assert (points["the run"], points[f"step {lines[0]['step']} alone"]) == (5, 4)


def test_the_page_has_it_all_and_needs_nothing(watched, table):
    table("--to", watched / "exports")
    page = (watched / "run/segments.html").read_text()
    assert not NEEDS.search(page)
    assert [title for title in ("Run", "Segments", "Published") if f"<h2>{title}</h2>" not in page] == []
    for title in ("log_loss", "label_rate", "Samples", "Shift", "New ids", "Hours behind"):
        assert chart_of(page, title)[1]["names"] == DAYS
    (note,) = lines_of(watched / "exports/refused.jsonl")
    assert f"<td>refused by label_rate_by: {note['figures']}</td>" in page
    assert "label_rate is 0.00000, after " in note["figures"]


@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(watched, table, tmp_path, width):
    table("--to", watched / "exports")
    shutil.copy(watched / "run/segments.html", tmp_path / "page.html")
    opened(tmp_path / "page.html", width)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--static", "7"], "--static is 7, "),
        (["--static", "best"], "--static is 'best'; allowed: first, or the step of a checkpoint that is kept"),
        (["--out", "/nosuch"], "--out is '/nosuch', where no segment was trained on; train on one first"),
        (["--to", "nosuch://b/exports"], "--to is 'nosuch://b/exports', which cannot be used"),
        (["--data.segments.path", "None"], "data.segments.path is unset; name the segments of the run, or take its"),
    ],
)
def test_wrong_input_is_one_line(watched, capfd, flags, message):
    words = ["segments", str(watched / "config.toml")]
    words += flags if "--out" in flags else ["--out", str(watched / "run"), *flags]
    assert trainer(words) == 2
    (error,) = capfd.readouterr().err.splitlines()
    assert message in error


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("2026-11-26", datetime(2026, 11, 27, tzinfo=UTC)),
        ("20261231", datetime(2027, 1, 1, tzinfo=UTC)),
        ("2026-11-26-05", datetime(2026, 11, 26, 6, tzinfo=UTC)),
        ("2026112623", datetime(2026, 11, 27, tzinfo=UTC)),
        ("2026-13-40", None),
        ("09", None),
        ("20261126-part", None),
    ],
)
def test_a_segment_of_a_day_or_an_hour_has_an_end(name, end):
    assert end_of(name) == (end and end.timestamp())
