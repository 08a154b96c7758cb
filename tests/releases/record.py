"""Records what a version writes: `python -m tests.releases.record` in the checkout of a release, from its root.

tests/releases/VERSION gets data, a configuration, a run of two ranks with a whole checkpoint, a delta and managed ids,
and an export, 400 kB in all. `test_releases.py` reads what every version has recorded; nothing of one is overwritten.
"""

import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HERE = Path(__file__).parent
ROWS, STEPS = 192, 6


def write_rows(file: Path) -> None:
    """Writes rows with dense columns, ids, lists of ids, strings and a label."""
    draw = np.random.default_rng(0)
    table = pa.table(
        {
            "price": draw.lognormal(size=ROWS),
            "item": draw.integers(0, 2**62, 40)[draw.integers(0, 40, ROWS)],
            "seen": [draw.integers(0, 50, n).tolist() for n in draw.integers(0, 4, ROWS)],
            "country": draw.choice(["fr", "jp", "ng"], ROWS),
            "clicked": draw.random(ROWS) < 0.4,
        }
    )
    file.parent.mkdir(parents=True)
    pq.write_table(table, file, row_group_size=64)


def configuration() -> str:
    """Returns the configuration, whose paths begin at the directory of the version."""
    return f"""
[data]
train = ["data"]
validation = ["data"]
test = ["data"]
labels = ["clicked"]
global_batch_size = 32

[data.dense]
price = {{ transform = "log1p" }}

[data.sparse]
item = {{ rows = 30, ids = "managed" }}
seen = {{ rows = 50 }}
country = {{ rows = 20, ids = "hash" }}

[model]
embedding_dim = 8
dense_layers = [8]
over_layers = [8]

[planner]
sharding_types = ["row_wise"]

[checkpoint]
every_steps = 3
full_every = 2
keep = {{ newest = 2 }}

[train]
steps = {STEPS}

[report]
interval_steps = 1
tensorboard = false
"""


def main() -> None:
    """Records this version."""
    number = version("torchx-recsys")
    if (HERE / number).exists():
        raise SystemExit(f"error: {HERE / number} is there already; a version is recorded once")
    ranks = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "trainer"]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, number)
        write_rows(folder / "data/rows.parquet")
        (folder / "config.toml").write_text(configuration())
        for words in (
            [*ranks, "train", "config.toml", "--out", "run"],
            [sys.executable, "-m", "trainer", "export", "run/config.toml", "--out", "run", "--to", "exports"],
        ):
            subprocess.run(words, cwd=folder, check=True)
        (folder / "run/run.html").unlink()  # which nothing reads
        facts = folder / "run/run.json"
        facts.write_text(facts.read_text().replace(sys.executable, "python"))
        shutil.copytree(folder, HERE / number)
    print(f"recorded in {HERE / number}")


if __name__ == "__main__":
    main()
