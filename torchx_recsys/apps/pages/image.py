"""Draws figures as a single PNG.

Without matplotlib: bars of 1,024 ranks take it 4 s and an SVG of 1.9 MB, here 0.03 s and 1.1 MB. Words in its SVG
shrink with the page, and it brings nine packages. Pillow comes with TensorBoard.
"""

import io
import textwrap
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from trainer.pages.figures import Figure, Lying, Stacked, colors_of, has_key, number_in_words

INK, FAINT, LIMIT = "#1d2228", "#5b6570", "#cc0000"
MARGIN = 30
PLOT = 1100  # pixels of the bars of all ranks; with more ranks, one pixel per rank
HEIGHT = 200  # height of vertical bars
BAR, GAP = 15, 5  # height of a horizontal bar, and the gap between two names
NAMES, VALUES = 240, 150  # pixels left and right of horizontal bars
LINE, TITLE, GROUND = 22, 32, 24  # pixels of a line, of a title, and below a figure
FONT, LARGE = ImageFont.load_default(13), ImageFont.load_default(18)
LETTERS = 150  # maximum length of a line of words


def draw_image(title: str, lines: Sequence[str], figures: Sequence[Figure], ranks: int = 0) -> bytes:
    """Returns an image of a title, lines of words and figures, one below the other.

    Args:
        title: The title.
        lines: The lines.
        figures: The figures.
        ranks: The most bars side by side.
    """
    width = 2 * MARGIN + max(PLOT, ranks)
    drawn = [_words(width, title, lines, GROUND), *(_drawn(width, figure) for figure in figures)]
    file = io.BytesIO()
    _below_each_other([Image.new("RGB", (width, MARGIN), "white"), *drawn]).save(file, "PNG")
    return file.getvalue()


def _below_each_other(images: Sequence[Image.Image]) -> Image.Image:
    whole = Image.new("RGB", (images[0].width, sum(one.height for one in images)), "white")
    below = 0
    for one in images:
        whole.paste(one, (0, below))
        below += one.height
    return whole


def _words(width: int, title: str, lines: Sequence[str], ground: int = 0) -> Image.Image:
    wrapped = [part for line in lines for part in textwrap.wrap(line, LETTERS)]
    image = Image.new("RGB", (width, TITLE + LINE * len(wrapped) + ground), "white")
    draw = ImageDraw.Draw(image)
    draw.text((MARGIN, 0), title, INK, LARGE)
    for number, line in enumerate(wrapped):
        draw.text((MARGIN, TITLE + LINE * number), line, FAINT, FONT)
    return image


def _drawn(width: int, figure: Figure) -> Image.Image:
    """Returns a figure: title and remark, the key, the bars."""
    key = [_key(width, figure)] if has_key(figure) else []
    bars = _stacked(width, figure) if isinstance(figure, Stacked) else _lying(width, figure)
    return _below_each_other([_words(width, figure.title, [figure.remark]), *key, bars])


def _key(width: int, figure: Figure) -> Image.Image:
    places, x, y = [], MARGIN, 0
    for name, color in colors_of(figure).items():
        name = _shortened(name, NAMES)
        length = 16 + round(FONT.getlength(name))
        if x + length > width - MARGIN:
            x, y = MARGIN, y + LINE
        places.append((x, y, name, color))
        x += length + 18
    image = Image.new("RGB", (width, y + LINE), "white")
    draw = ImageDraw.Draw(image)
    for x, y, name, color in places:
        draw.rectangle((x, y + 2, x + 10, y + 12), color)
        draw.text((x + 16, y), name, INK, FONT)
    return image


def _stacked(width: int, figure: Stacked) -> Image.Image:
    """Returns vertical bars; every rank has the same whole number of pixels, so that no bar seems thicker."""
    values = np.array([*figure.parts.values()])
    ranks, top = values.shape[1], max(float(values.sum(axis=0).max()), figure.limit or 0.0) or 1.0
    step = max(1, PLOT // ranks)
    image = Image.new("RGB", (width, HEIGHT + 2 * LINE + GROUND), "white")
    draw, ground = ImageDraw.Draw(image), LINE + HEIGHT
    edges = np.rint(np.vstack([np.zeros(ranks), values.cumsum(axis=0)]) * HEIGHT / top).astype(int)
    for number, color in enumerate(colors_of(figure).values()):
        for rank in np.flatnonzero(edges[number + 1] > edges[number]):
            left, right = MARGIN + step * rank, MARGIN + step * (rank + 1) - 1 - step // 7
            above, below = (ground - int(edges[part, rank]) for part in (number + 1, number))
            draw.rectangle((int(left), above, int(right), below - 1), color)
    if figure.limit:
        y = ground - round(figure.limit * HEIGHT / top)
        for x in range(MARGIN, MARGIN + step * ranks, 14):
            draw.line((x, y, x + 7, y), LIMIT)
    draw.line((MARGIN, ground, MARGIN + step * ranks, ground), FAINT)
    draw.text((MARGIN, 2), f"{top:.3g} {figure.unit}", FAINT, FONT)
    draw.text((MARGIN, ground + 4), f"{figure.of} 0", FAINT, FONT)
    draw.text((MARGIN + step * ranks, ground + 4), f"{figure.of} {ranks - 1}", FAINT, FONT, anchor="ra")
    return image


def _lying(width: int, figure: Lying) -> Image.Image:
    top = max((value for values in figure.series.values() for value in values), default=0.0) or 1.0
    colors, of_name = colors_of(figure), BAR * len(figure.series) + GAP
    image = Image.new("RGB", (width, of_name * len(figure.names) + GROUND), "white")
    draw, left, room = ImageDraw.Draw(image), MARGIN + NAMES, width - 2 * MARGIN - NAMES - VALUES
    for number, name in enumerate(figure.names):
        draw.text((left - 10, of_name * number), _shortened(name, NAMES - 10), INK, FONT, anchor="ra")
        for place, (series, values) in enumerate(figure.series.items()):
            y, length = of_name * number + BAR * place, round(room * values[number] / top)
            if length:
                draw.rectangle((left, y, left + length - 1, y + BAR - 2), colors[series])
            draw.text((left + length + 8, y), f"{number_in_words(values[number])} {figure.unit}", INK, FONT)
    return image


def _shortened(name: str, width: int) -> str:
    """Returns a name cut to `width` pixels."""
    while FONT.getlength(name) > width:
        name = f"{name.removesuffix('...')[:-1]}..."
    return name
