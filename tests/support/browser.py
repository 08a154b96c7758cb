"""A real browser that opens a page from a file."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
MEASURE = """<script>
document.body.dataset.width = document.documentElement.scrollWidth;
setTimeout(() => {
  const plot = document.querySelector(".u-over");
  if (!plot) return;
  const { left, top, width, height } = plot.getBoundingClientRect();
  for (const name of ["mouseenter", "mousemove"])
    plot.dispatchEvent(new MouseEvent(name, { clientX: left + width / 2, clientY: top + height / 2 }));
}, 500);
</script>"""  # how wide everything is; then the pointer is in the middle of the first chart
HEIGHT = 2400
NEEDS = re.compile(r"<script[^>]+src|<link|<img|src=|href=(?!.#)|url\(|@import")
"""What a page would load from elsewhere."""

with_a_browser = pytest.mark.skipif(
    not BROWSER, reason="no browser: install Debian's chromium-headless-shell, as .ci/run does"
)


def chart_of(page: str, title: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what a page draws in a chart: its curves by name, and all that the chart has."""
    text = page[page.index(f"<h3>{title}</h3>") :]
    tree = json.loads(text.partition('<script type="application/json">')[2].partition("</script>")[0])
    return {one["name"]: one for one in tree["series"]}, tree


def opened(page: Path, width: int) -> tuple[str, Image.Image]:
    """Opens a page in a window of a width; returns the document as it is then, and a picture.

    Nothing in the page may be wider than the window.
    """
    measured, picture = page.with_suffix(".measured.html"), page.with_suffix(".png")
    # The policy of the page would refuse the script of this test.
    free = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
    measured.write_text(free.replace("</body>", f"{MEASURE}</body>"))
    document = _browse(width, "--dump-dom", measured.as_uri())
    assert f'data-width="{width}"' in document
    _browse(width, f"--screenshot={picture}", page.as_uri())
    image = Image.open(picture).convert("RGB")
    assert image.size == (width, HEIGHT)
    return document, image


def _browse(width: int, *words: str) -> str:
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=10000"]
    command = [str(BROWSER), *flags, f"--window-size={width},{HEIGHT}", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout
