"""The page of a check: complete, self-contained, and as wide as a real browser's window."""

import re
from html import unescape
from itertools import combinations
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser import NEEDS, chart_of, opened, with_a_browser
from checked_data import clean_data
from command import write_config
from PIL import Image
from scipy.stats import spearmanr

from trainer.__main__ import main as trainer


@pytest.fixture
def page(tmp_path):
    """The page of data with a fault, a column of a dangerous name, and ids that are markup."""
    made = clean_data()
    for split in made.splits:
        for columns in made.columns(split):
            columns["<b>&"] = pa.array([f"<i>{n % 3}" for n in range(len(columns["when"]))])
    made.data["sparse"]["<b>&"] = {"rows": 8, "ids": "hash"}
    made.data["sparse"]["item"] = {"rows": 100}
    file, page = write_config(tmp_path / "config.toml", made.write(tmp_path / "data")), tmp_path / "check.html"
    assert trainer(["check-data", str(file), "--page", str(page), "--time", "when"]) == 0
    return page


def test_the_page_has_everything_and_needs_nothing(page):
    text = page.read_text()
    assert not NEEDS.search(text)
    assert "<b>&" not in text.replace("&lt;b&gt;&amp;", "")
    assert "<i>0" not in text
    assert '<td class="error">error</td><td>outside the table</td><td><a href="#item">item</a></td>' in text
    for column in ("price", "age", "item", "city", "tags", "&lt;b&gt;&amp;", "importance"):
        assert re.search(rf'<h2 id="{re.escape(column)}">{re.escape(column)}</h2>', text)
    for title in ("label by file", "label over when", "Most frequent ids", "label of these", "label by value"):
        assert f"<h3>{title}</h3>" in text
    assert text.count("<h3>Distribution</h3>") == 4  # price, age, importance and when
    splits, _ = chart_of(text, "Distribution")
    assert splits.keys() == {"train", "validation", "test"}
    assert all(sum(one["y"][:-1]) == pytest.approx(100, abs=0.01) for one in splits.values())


def test_every_link_leads_to_its_column(page):
    text = page.read_text()
    links = [unescape(unquote(link)) for link in re.findall(r'href="#([^"]*)"', text)]
    places = {unescape(name) for name in re.findall(r'<h2 id="([^"]*)"', text)}
    assert {*links} == places  # from the table of columns, and from findings
    assert links.count("item") == 1 + 3  # a finding in each split


def test_correlations_are_of_ranks(page):
    text = page.read_text()
    table = text[text.index('<table id="correlations">') :]
    rows = re.findall(r"<tr><th>(\w+)</th>(.*?)</tr>", table[: table.index("</table>")])
    names = [name for name, _ in rows]
    found = np.array([[float(cell) for cell in re.findall(r">(-?[\d.]+)</td>", row)] for _, row in rows])
    tables = [pq.read_table(file) for file in sorted((page.parent / "data" / "train").iterdir())]
    columns = [np.nan_to_num(pa.concat_tables(tables)[name].to_numpy().astype(float), nan=np.nan) for name in names]
    assert {"price", "age", "when", "label"} <= {*names}
    for (one, first), (other, second) in combinations(enumerate(columns), 2):
        whole = np.isfinite(first) & np.isfinite(second)
        expected = spearmanr(first[whole], second[whole]).statistic
        assert found[one, other] == pytest.approx(expected, abs=0.02), (names[one], names[other])


def test_a_column_that_is_left_out_has_its_reason(tmp_path):
    rows = {"label": [0, 1] * 50, "same": [7.0] * 100, "item_id": [n % 37 for n in range(100)]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    flags = ("--source", str(tmp_path / "rows.parquet"), "--label", "label", "--page", str(tmp_path / "check.html"))
    assert trainer(["check-data", *flags]) == 0
    text = (tmp_path / "check.html").read_text()
    assert re.search(r'<tr><td><a href="#same">same</a></td><td>one value</td></tr>', text)


@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(page, width):
    document, image = opened(page, width)
    assert '<div class="u-wrap"' in document  # uPlot has drawn
    blue = sum(pixel == (0x1F, 0x6F, 0xB4) for pixel in image.resize((100, 400), Image.Resampling.NEAREST).getdata())
    assert blue > 100  # bars
