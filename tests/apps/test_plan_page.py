"""The page of a plan: complete, self-contained, and as wide as a real browser's window."""

import html
import json
import re

import pytest
from browser import opened, with_a_browser
from PIL import Image
from plan_command import planned, write_tables

pytestmark = pytest.mark.slow

ROWS = {"s0": 40_000_000, "s1": 5_000_000, "<b>&": 900_000, "s3": 1_000, "s4": 10}


@pytest.fixture
def drawn(tmp_path, capsys):
    """The text and the page of a plan for two clusters, and of one that does not fit."""
    file, page = write_tables(tmp_path, ROWS, planner__host_memory_gib=4.0), tmp_path / "plan.html"
    memory = ("--planner.memory-gib", "8")
    planned(capsys, file, "--on", "h100:2", "a100:2", "a100_1:1", *memory, "--page", page)
    return planned(capsys, file, "--on", "h100:2", *memory), page


def test_the_page_has_everything_and_needs_nothing(drawn):
    text, file = drawn
    page = file.read_text()
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import", page)
    assert "<b>&" not in page.replace("&lt;b&gt;&amp;", "")
    for title in ("Clusters compared", "Memory of the ranks", "Time of the ranks", "Exchange between hosts", "Tables"):
        assert f"<h2>{title}</h2>" in page
    for line in text.partition("\n\nms of a step")[0].splitlines()[2:]:
        assert line.split(maxsplit=1)[1].split(":")[0].removeprefix("by ").strip() in html.unescape(page)
    rows = re.findall(r"<tr><td>.*?</tr>", page)
    assert len(rows) == len(ROWS)
    assert all("why here</summary><ul><li>" in row for row in rows)
    assert "a100_1:1 does not fit: " in page


def test_the_bars_of_a_rank_add_up(drawn):
    text, file = drawn
    fullest = float(re.search(r"takes ([\d.]+) of", text)[1])
    slowest = float(re.search(r"the slowest rank ([\d.]+) ms", text)[1])
    for unit, expected in (("GiB", fullest), ("ms", slowest)):
        of_ranks = {}
        for rank, value in re.findall(rf"<title>rank (\d+), [^:]*: ([\d.e+-]+) {unit}</title>", file.read_text()):
            of_ranks[rank] = of_ranks.get(rank, 0.0) + float(value)
        assert max(of_ranks.values()) == pytest.approx(expected, rel=6e-3)


def test_hosts_send_what_their_shards_give_to_others(drawn, tmp_path, capsys):
    """Whole tables on single ranks: embeddings of all samples but those of the host's ranks, and their gradients."""
    page, plan = tmp_path / "whole.html", tmp_path / "plan.json"
    words = ("--planner.sharding-types", "table_wise", "--page", page, "--out", plan)
    planned(capsys, tmp_path / "config.toml", "--on", "h100:2", *words)
    (module,) = json.loads(plan.read_text())["modules"].values()
    hosts = [0.0, 0.0]
    for table in module.values():
        hosts[int(table["ranks"]) // 8] += 2 * 16384 * 64 * 4 * 8 / 16 / 1e6
    found = re.findall(r">host \d</span><svg>.*?</svg><span>([\d.]+) MB<", page.read_text())
    assert [float(sent) for sent in found] == pytest.approx(hosts, rel=1e-3)


@pytest.mark.few(1, "one width stands for all")
@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(drawn, width):
    _, image = opened(drawn[1], width)
    blue = sum(pixel == (0x1F, 0x6F, 0xB4) for pixel in image.resize((100, 400), Image.Resampling.NEAREST).getdata())
    assert blue > 100  # bars
