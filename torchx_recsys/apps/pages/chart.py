"""Charts of curves over steps: as text, as SVG and as PNG.

Without matplotlib, for the reasons in `image`.
"""

import io
from dataclasses import dataclass
from html import escape
from typing import Protocol

from PIL import Image, ImageDraw, ImageFont

BLOCKS = " ▁▂▃▄▅▆▇█"
COLUMNS, LINES = 64, 8  # size of a chart in the terminal
WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 200, 90, 36, 34  # layout of a drawn chart, in pixels
INK, FAINT, ACCENT = "#333333", "#d5d5d5", "#1f77b4"
TICKS = 4
FONT_SIZE = 13

Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Values by step.

    Attributes:
        title: Its name.
        steps: The steps, ascending.
        values: A value per step, at least 0.
    """

    title: str
    steps: list[int]
    values: list[float]


def columns(last: int) -> list[int]:
    """Returns the steps of a text chart's columns, from 1 to the last."""
    return sorted({1 + (last - 1) * n // (COLUMNS - 1) for n in range(COLUMNS)})


def text_chart(curve: Curve) -> str:
    """Returns a chart of bars, one for each step of the curve."""
    top = max(curve.values)
    eighths = [round(value / top * LINES * 8) if top else 0 for value in curve.values]
    lines = ["".join(BLOCKS[min(8, max(0, n - 8 * line))] for n in eighths) for line in reversed(range(LINES))]
    labels = [f"{top:.4g}", *[""] * (LINES - 2), "0"]
    first, last = str(curve.steps[0]), str(curve.steps[-1])
    below = first + last.rjust(len(curve.steps) - len(first))
    bars = [f"{label:>9} │{line}".rstrip() for label, line in zip(labels, lines, strict=True)]
    return "\n".join([curve.title, *bars, " " * 11 + below])


class Canvas(Protocol):
    """A surface to draw charts on."""

    def line(self, points: list[Point], color: str) -> None:
        """Draws a line through points."""
        ...

    def text(self, x: float, y: float, words: str, anchor: str) -> None:
        """Writes words with their baseline at `y`; the anchor is the side of the words at `x`."""
        ...

    def file(self) -> bytes:
        """Returns the drawing as a file."""
        ...


class Svg:
    """A drawing as SVG.

    Args:
        height: Its height in pixels.
    """

    def __init__(self, height: int) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
            f'font-size="{FONT_SIZE}"><rect width="100%" height="100%" fill="white"/>'
        ]

    def line(self, points: list[Point], color: str) -> None:
        """Draws a line through points."""
        pairs = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline points="{pairs}" fill="none" stroke="{color}" stroke-width="1.5"/>')

    def text(self, x: float, y: float, words: str, anchor: str) -> None:
        """Writes words."""
        side = {"left": "start", "middle": "middle", "right": "end"}[anchor]
        self._parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{side}" fill="{INK}">{escape(words)}</text>')

    def file(self) -> bytes:
        """Returns the drawing as a file."""
        return "\n".join([*self._parts, "</svg>\n"]).encode()


class Png:
    """A drawing as PNG.

    Args:
        height: Its height in pixels.
    """

    def __init__(self, height: int) -> None:
        self._image = Image.new("RGB", (WIDTH, height), "white")
        self._draw, self._font = ImageDraw.Draw(self._image), ImageFont.load_default(FONT_SIZE)

    def line(self, points: list[Point], color: str) -> None:
        """Draws a line through points."""
        self._draw.line(points, color, width=2 if color == ACCENT else 1)

    def text(self, x: float, y: float, words: str, anchor: str) -> None:
        """Writes words."""
        self._draw.text((x, y), words, INK, self._font, anchor=f"{anchor[0]}s")

    def file(self) -> bytes:
        """Returns the drawing as a file."""
        file = io.BytesIO()
        self._image.save(file, "PNG")
        return file.getvalue()


def draw(curves: list[Curve], kind: str) -> bytes:
    """Returns a drawing of the curves, one below the other, as an `svg` or a `png`."""
    canvas = {"svg": Svg, "png": Png}[kind](HEIGHT * len(curves))
    for number, curve in enumerate(curves):
        _draw(canvas, curve, number * HEIGHT)
    return canvas.file()


def _draw(canvas: Canvas, curve: Curve, above: int) -> None:
    left, right, top, bottom = LEFT, WIDTH - 30, above + TOP, above + HEIGHT - BOTTOM
    highest, last = max(curve.values) or 1.0, max(2, curve.steps[-1])
    canvas.text(left, top - 12, curve.title, "left")
    for n in range(TICKS + 1):
        x, y = left + (right - left) * n / TICKS, bottom - (bottom - top) * n / TICKS
        canvas.line([(left, y), (right, y)], FAINT)
        canvas.text(left - 8, y + 4, f"{highest * n / TICKS:.4g}", "right")
        canvas.text(x, bottom + 18, f"{1 + round((last - 1) * n / TICKS):,}", "middle")
    canvas.line(
        [
            (left + (right - left) * (step - 1) / (last - 1), bottom - (bottom - top) * value / highest)
            for step, value in zip(curve.steps, curve.values, strict=True)
        ],
        ACCENT,
    )
