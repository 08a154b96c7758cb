"""The page of a check: complete, self-contained, and as wide as a real browser's window."""

import re

import pyarrow as pa
import pytest
from browser import opened, with_a_browser
from checked_data import clean_data
from command import write_config
from PIL import Image

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
    assert not re.search(r"<script|<link|<img|src=|href=|url\(|@import", text)
    assert "<b>&" not in text.replace("&lt;b&gt;&amp;", "")
    assert "<i>0" not in text
    assert '<td class="error">error</td><td>outside the table</td><td>item</td>' in text
    for column in ("price", "age", "item", "city", "tags", "&lt;b&gt;&amp;", "importance"):
        assert re.search(rf'<h2 id="{re.escape(column)}">{re.escape(column)}</h2>', text)
    for title in ("label by file", "label over when", "Most frequent ids", "label of these", "label by value"):
        assert f"<h2>{title}</h2>" in text
    assert text.count('<svg class="values"') == 4  # price, age, importance and when
    assert "<i style" in text


@with_a_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(page, width):
    _, image = opened(page, width)
    blue = sum(pixel == (0x1F, 0x6F, 0xB4) for pixel in image.resize((100, 400), Image.Resampling.NEAREST).getdata())
    assert blue > 100  # bars
