"""The image of a plan: the bars and the words of its page, readable on a thousand ranks."""

import io
import re

import fsspec
import numpy as np
import pytest
from PIL import Image, ImageDraw
from plan_command import planned, refused, write_tables

from torchx_recsys.apps.pages.image import FAINT, FONT, HEIGHT, INK, LARGE, MARGIN, NAMES, PLOT, VALUES

pytestmark = pytest.mark.slow

BLUE = (0x1F, 0x6F, 0xB4)
ROWS = {"s0": 40_000_000, "s1": 5_000_000, "s2": 900_000, "s3": 1_000, "s4": 10}


@pytest.fixture
def file(tmp_path):
    return write_tables(tmp_path, ROWS)


@pytest.fixture
def drawn(file, tmp_path, capsys):
    """Draws clusters; returns the pixels of the image, the page, and what is printed."""

    def draw(*on, flags=()):
        page, png = tmp_path / "plan.html", tmp_path / "plan.png"
        text = planned(capsys, file, "--on", *on, *flags, "--page", page, "--png", png)
        image = Image.open(png)
        assert (image.format, image.mode) == ("PNG", "RGB")
        return np.asarray(image), page.read_text(), text

    return draw


def row_of(pixels, words, font=LARGE, color=INK):
    """Returns the row of pixels below the words that begin at the left margin; fails if they are not there."""
    stamp = Image.new("RGB", (round(font.getlength(words)) + 1, 24), "white")
    ImageDraw.Draw(stamp).text((0, 0), words, color, font)
    stamp = np.asarray(stamp.crop((0, 0, stamp.width, font.size + 2)))
    column = pixels[:, MARGIN : MARGIN + stamp.shape[1]]
    rows = [y for y in range(len(column) - len(stamp)) if (column[y : y + len(stamp)] == stamp).all()]
    assert len(rows) == 1, (words, rows)
    return rows[0] + len(stamp)


def colored(pixels):
    """Returns which pixels belong to bars: neither white, nor grey letters, nor the dashed line."""
    return (pixels == BLUE).all(axis=-1)


def test_it_has_the_sections_of_the_page(drawn):
    pixels, page, _ = drawn("h100:2", "a100:2", flags=("--planner.sharding-types", "table_wise"))
    assert pixels.shape[1] == PLOT + 2 * MARGIN
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    rows = [row_of(pixels, title) for title in titles if title != "Tables"]
    assert rows == sorted(rows)
    assert len(rows) == 7
    assert row_of(pixels, "16 GPUs on 2 hosts of h100", FONT, FAINT) < rows[0]


def test_lying_bars_are_as_long_as_their_values(drawn):
    pixels, page, _ = drawn("h100:2")
    start, end = row_of(pixels, "Parts of a step"), row_of(pixels, "Heaviest tables")
    section = page.split("Parts of a step")[1].split("Heaviest tables")[0]
    values = [float(value) for value in re.findall(r"<span>([\d.e-]+) ms</span>", section)]
    left = MARGIN + NAMES
    lengths = colored(pixels[start:end, left : -MARGIN - VALUES]).sum(axis=1)
    bars = [lengths[y] for y in range(1, len(lengths)) if lengths[y] and not lengths[y - 1]]
    room = PLOT - NAMES - VALUES
    expected = [round(room * value / max(values)) for value in values]
    assert bars == [pytest.approx(length, abs=1) for length in expected if length]


def test_standing_bars_are_as_high_as_their_ranks(drawn):
    """The colors of every rank's column, from the ground up, are those of the page's bars."""
    pixels, page, _ = drawn("h100:2")
    end = row_of(pixels, "Parts of a step")
    band = pixels[row_of(pixels, "Time of the ranks") : end]
    bars = re.findall(r'height="([\d.]+)" fill="(#\w+)"><title>rank (\d+), [^:]*: [\d.e-]+ ms', page)
    assert len({rank for *_, rank in bars}) > 8
    for color in {color for _, color, _ in bars}:
        is_there = (band == tuple(bytes.fromhex(color[1:]))).all(axis=-1)
        for rank in range(16):
            column = is_there[60:, MARGIN + PLOT // 16 * rank + 20].sum()  # below the key
            heights = [float(height) for height, other, of in bars if (other, int(of)) == (color, rank)]
            assert column == pytest.approx(sum(heights) * HEIGHT / 200, abs=1.5)


def test_a_thousand_ranks_have_a_column_each(drawn):
    pixels, _, _ = drawn("h100:128", flags=("--planner.sharding-types", "row_wise"))
    start, end = row_of(pixels, "Time of the ranks"), row_of(pixels, "Parts of a step")
    row = (pixels[start:end] != 255).any(axis=-1)[60:]
    full = row.sum(axis=1)
    assert PLOT >= 1024
    assert 1024 <= full.max() <= 1025  # bars of all ranks; one more of the line below them
    below = row_of(pixels, "Exchange between hosts")
    assert len(pixels) - below < 2 * HEIGHT  # bars of 128 hosts stand, too
    assert colored(pixels[below:]).any(axis=0).sum() > PLOT // 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--png", "plan.jpg"], "--png is 'plan.jpg', but only .png can be drawn"),
        (["--png", "/proc/nowhere/plan.png"], "--png is '/proc/nowhere/plan.png'"),
        (["--png", "nowhere://plan.png"], "--png is 'nowhere://plan.png'"),
        (["--png", "plan.png", "--vary", "all"], "--png cannot be given with --vary; leave one of them out"),
    ],
)
def test_wrong_flags_are_one_line(file, capsys, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(capsys, file, *flags)
    assert not (tmp_path / "plan.png").exists()


def test_it_is_written_to_any_storage(file, capsys):
    planned(capsys, file, "--on", "h100:1", "--png", "memory://plans/one.png")
    content = fsspec.filesystem("memory").cat_file("/plans/one.png")
    assert Image.open(io.BytesIO(content)).size[0] == PLOT + 2 * MARGIN
