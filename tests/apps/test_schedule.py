"""`python -m trainer schedule` shows the rates that training sets."""

import io
import re
from xml.etree import ElementTree

import pytest
from command import write_config
from jobs import config
from PIL import Image

from torchx_recsys.apps.pages.chart import COLUMNS, Curve, draw, text_chart
from trainer.__main__ import main as trainer
from trainer.config.root import load_config
from trainer.optim.schedules import learning_rates

EPOCH = 4  # 256 samples in batches of 64


@pytest.fixture
def file(rows, tmp_path):
    top = {"decay": "piecewise", "unit": "epochs", "boundaries": [2, 5], "multipliers": [1.0, 0.5, 0.25]}
    tree = config(
        rows,
        optimizer__sparse__schedule={"warmup_steps": 7, "decay": "linear", "decay_start": 11, "decay_steps": 12},
        optimizer__dense__parts={"top": {"weights": ["over_arch.*"], "learning_rate": 0.3, "schedule": top}},
        train__steps=40,
    )
    return write_config(tmp_path / "config.toml", tree)


def table(text):
    """Returns the rows of the table, numbers by heading."""
    lines = [line.split() for line in text.partition("\n\n")[0].splitlines()]
    return [dict(zip(lines[0], (float(word.replace(",", "")) for word in line), strict=True)) for line in lines[2:]]


def test_the_table_has_the_rates_of_telling_steps(file, capsys):
    assert trainer(["schedule", str(file)]) == 0
    found = table(capsys.readouterr().out)
    rates = learning_rates(load_config(str(file)).optimizer)
    assert found[0].keys() == {"step", "epoch", *rates}
    steps = [int(row["step"]) for row in found]
    assert steps == sorted(steps)
    assert {1, 7, 11, 23, 40} <= set(steps)  # warm-up, beginning and end of the decay
    assert {2 * EPOCH + 1, 5 * EPOCH + 1} <= set(steps)  # the first of an epoch
    for row in found:
        assert row["epoch"] == (row["step"] - 1) // EPOCH + 1
        for key, rate in rates.items():
            assert row[key] == pytest.approx(rate.at(int(row["step"]), EPOCH), rel=1e-5)


def test_no_data_is_read_if_the_length_of_an_epoch_is_given(file, tmp_path, capsys):
    arguments = ["schedule", str(file), "--data.train", str(tmp_path / "nowhere.parquet"), "--train.epochs", "3"]
    assert trainer(arguments) == 2
    assert trainer([*arguments, "--steps-per-epoch", "20"]) == 0
    assert table(capsys.readouterr().out)[-1]["step"] == 60


def test_saves_and_evaluations_are_listed(file, tmp_path, capsys):
    arguments = ["--data.validation", "nowhere", "--evaluate.every-epochs", "3", "--checkpoint.every-epochs", "1"]
    assert trainer(["schedule", str(file), *arguments, "--checkpoint.every-minutes", "10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "10 saves: after steps 4, 8, 12, 16, ..., 40, and every 10 minutes" in lines
    assert "4 evaluations: after steps 12, 24, 36, 40" in lines
    assert trainer(["schedule", str(file)]) == 0
    assert "1 save: after step 40" in capsys.readouterr().out.splitlines()


def test_the_terminal_shows_a_chart_of_each_rate(file, capsys):
    assert trainer(["schedule", str(file)]) == 0
    _, _, *charts = capsys.readouterr().out.rstrip("\n").split("\n\n")
    assert [chart.splitlines()[0] for chart in charts] == ["sparse", "dense", "dense.parts.top"]
    assert max(len(line) for chart in charts for line in chart.splitlines()) <= 11 + COLUMNS


def test_bars_are_as_high_as_the_values():
    lines = text_chart(Curve("rate", [1, 2, 3, 4], [0.0, 1.0, 2.0, 4.0])).splitlines()
    bars = [line.partition("│")[2].ljust(4) for line in lines[1:-1]]
    assert [sum(bar[n] == "█" for bar in bars) for n in range(4)] == [0, 2, 4, 8]
    assert (lines[1].split()[0], lines[-2].split()[0], lines[-1].split()) == ("4", "0", ["1", "4"])
    assert "█" not in text_chart(Curve("none", [1, 2], [0.0, 0.0]))


def test_they_are_drawn_as_svg(file, tmp_path):
    assert trainer(["schedule", str(file), "--out", str(tmp_path / "rates.svg")]) == 0
    drawing = ElementTree.parse(tmp_path / "rates.svg").getroot()
    words = [element.text for element in drawing.iter("{http://www.w3.org/2000/svg}text")]
    assert {"sparse", "dense", "dense.parts.top", "0.3", "0.5", "40"} <= set(words)
    lines = [element.get("points") for element in drawing.iter("{http://www.w3.org/2000/svg}polyline")]
    curve = [tuple(map(float, point.split(","))) for point in max(lines, key=len).split()]
    assert curve == sorted(curve, key=lambda point: point[0])


def test_a_drawn_curve_has_the_shape_of_its_values():
    drawing = draw([Curve("rate", [1, 51, 101], [0.0, 4.0, 1.0])], "svg").decode()
    left, middle, right = points(drawing)
    assert middle[0] - left[0] == pytest.approx(right[0] - middle[0], abs=0.1)
    assert (left[1] - right[1]) * 4 == pytest.approx(left[1] - middle[1], abs=0.5)


def points(drawing):
    """Returns the points of the last line that is drawn."""
    *_, line = re.findall(r'polyline points="([^"]*)"', drawing)
    return [tuple(map(float, point.split(","))) for point in line.split()]


def test_they_are_drawn_as_png(file, tmp_path):
    assert trainer(["schedule", str(file), "--out", str(tmp_path / "rates.png")]) == 0
    image = Image.open(io.BytesIO((tmp_path / "rates.png").read_bytes()))
    assert image.size == (760, 600)
    colors = dict((color, count) for count, color in image.getcolors(1 << 16))
    assert colors[(0x1F, 0x77, 0xB4)] > 3 * 600  # three curves over the whole width


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--out", "rates.jpg"], "--out is 'rates.jpg'; it must end in .svg or .png"),
        (["--out", ""], "--out is ''; it must end in .svg or .png"),
        (["--steps-per-epoch", "0"], "--steps-per-epoch is 0; it must be at least 1"),
        (
            ["--data.global-batch-size", "512", "--data.last-batch", "drop"],
            "data.global_batch_size is 512, more than the",
        ),
        (["--optimizer.dense.schedule.decay", "slope"], "optimizer.dense.schedule.decay is 'slope'"),
        (["--optimizer.dense.schedule.growth", "3"], "optimizer.dense.schedule.growth is 3, which optimizer.dense."),
    ],
)
def test_wrong_input_leads_to_one_line(file, arguments, line, capsys):
    assert trainer(["schedule", str(file), *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"error: {line}")
