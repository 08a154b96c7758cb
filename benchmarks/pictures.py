"""Takes the screenshots of the documentation, of real jobs in a real browser.

Writes docs/pictures.
Takes some minutes, and Debian's chromium-headless-shell or another Chromium in PATH.

A picture has few colors, so that the page that shows it loads at once.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from benchmarks.published import mlperf_file
from docs.generate import ROOT

PICTURES = ROOT / "docs" / "pictures"
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
WIDTH, COLORS = 1280, 128
STATIC = "140"  # the step after segment 09, at which the model is left alone
SWEEP = """
out = "sweep"
aim = "auc"
trials = 12
at_once = 2

[arguments]
config = "movielens"
cpu = 1
trainer_args = ["--evaluate.every_steps", "40"]

[space]
optimizer.dense.learning_rate = { log = [1e-4, 1e-1] }
optimizer.sparse.learning_rate = { log = [1e-3, 1.0] }
model.over_layers = [[64], [64, 32], [128, 64]]
"""


def main() -> None:
    """Runs the jobs in a new directory, and takes pictures of their pages."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").symlink_to(ROOT / "data")
        _plan(folder)
        _check(folder)
        _run(folder)
        _segments(folder)
        _sweep(folder)


def _plan(folder: Path) -> None:
    (folder / "mlperf.toml").write_text(mlperf_file())
    clusters = ("aws_p5.48xlarge:1", "aws_p4d.24xlarge:1")
    _trainer(folder, "plan", "mlperf.toml", "--on", *clusters, "--page", "plan.html")
    _take((folder / "plan.html").as_uri(), "plan", 1490)


def _check(folder: Path) -> None:
    faulty = ("--data.sparse.item-id.rows", "1000")
    _trainer(folder, "check-data", "movielens", "--page", "check.html", *faulty)
    _take((folder / "check.html").as_uri(), "check", 1400)


def _run(folder: Path) -> None:
    _trainer(folder, "baselines", "movielens", "--to", "baselines.json")
    often = ("--report.interval-steps", "5", "--report.histograms-every-steps", "20", "--evaluate.every-steps", "20")
    often += ("--report.baselines", "baselines.json")
    for seed in ("0", "1"):
        out = ("--out", f"runs/seed-{seed}", "--train.seed", seed)
        _trainer(folder, "train", "movielens", *out, *often)
    _trainer(folder, "importance", "runs/seed-0/config.toml", "--out", "runs/seed-0")
    _take((folder / "runs/seed-0/run.html").as_uri(), "run", 1500)
    _trainer(folder, "compare", "--runs", "runs/seed-0", "runs/seed-1", "--page", "compared.html")
    _take((folder / "compared.html").as_uri(), "compared", 1200)
    server = subprocess.Popen(
        [sys.executable, "-m", "trainer", "tensorboard", "--logdir", "runs", "--port", "0"],
        cwd=folder,
        env=_environment(folder),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address = next(found[0] for line in server.stderr or () if (found := re.search(r"http://\S+", line)))
        _take(f"{address}#scalars", "tensorboard", 900)
    finally:
        server.terminate()
        server.wait()


def _segments(folder: Path) -> None:
    _trainer(folder, "train", "movielens_segments", "--out", "days", "--checkpoint.keep.segments", "30")
    _trainer(folder, "segments", "movielens_segments", "--out", "days", "--static", STATIC)
    _take((folder / "days/segments.html").as_uri(), "segments", 1240)


def _sweep(folder: Path) -> None:
    (folder / "sweep.toml").write_text(SWEEP)
    _started([sys.executable, "-m", "torchx.cli.main", "sweep", "run", "sweep.toml"], folder)
    _take((folder / "sweep/sweep.html").as_uri(), "sweep", 1160)


def _trainer(folder: Path, *words: str) -> None:
    _started([sys.executable, "-m", "trainer", *words], folder)


def _started(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder / "state")}


def _take(address: str, name: str, height: int) -> None:
    """Takes a picture of the top of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    assert browser, f"no browser: install one of {', '.join(BROWSERS)}"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=20000"]
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder) / "taken.png"
        size = f"--window-size={WIDTH},{height}"
        subprocess.run([browser, *flags, size, f"--screenshot={taken}", address], check=True, capture_output=True)
        image = Image.open(taken).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    image.save(PICTURES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(PICTURES / f'{name}.png').stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
