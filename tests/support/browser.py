"""A real browser that opens a page from a file."""

import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
MEASURE = "<script>document.body.dataset.width = document.documentElement.scrollWidth</script>"
HEIGHT = 2400

with_a_browser = pytest.mark.skipif(
    not BROWSER, reason="no browser: install Debian's chromium-headless-shell, as .ci/run does"
)


def opened(page: Path, width: int) -> tuple[str, Image.Image]:
    """Opens a page in a window of a width; returns the document as it is then, and a picture.

    Nothing in the page may be wider than the window.
    """
    measured, picture = page.with_suffix(".measured.html"), page.with_suffix(".png")
    measured.write_text(page.read_text().replace("</body>", f"{MEASURE}</body>"))
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
