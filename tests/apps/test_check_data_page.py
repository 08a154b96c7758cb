"""The page of a check: complete, self-contained, and as wide as a real browser's window."""

import re
import shutil
import subprocess

import pyarrow as pa
import pytest
from checked_data import clean_data
from command import write_config
from PIL import Image

from trainer.__main__ import main as trainer

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
MEASURE = "<script>document.body.dataset.width = document.documentElement.scrollWidth</script>"


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


@pytest.mark.skipif(not BROWSER, reason="no browser: install Debian's chromium-headless-shell, as .ci/run does")
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_it_without_a_server(page, tmp_path, width):
    def browse(*words):
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},2400"]
        done = subprocess.run([BROWSER, *flags, *words], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    measured = tmp_path / "measured.html"
    measured.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
    assert f'data-width="{width}"' in browse("--dump-dom", measured.as_uri())  # nothing is wider than the window
    browse(f"--screenshot={tmp_path / 'page.png'}", page.as_uri())
    image = Image.open(tmp_path / "page.png").convert("RGB")
    assert image.size == (width, 2400)
    blue = sum(pixel == (0x1F, 0x6F, 0xB4) for pixel in image.resize((100, 400), Image.Resampling.NEAREST).getdata())
    assert blue > 100  # bars
