"""A published table, and how its splits are made and a configuration is measured on them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.tables.scores import Scores
from trainer.commands import read_command

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published table.

    Attributes:
        source: Who published it, with a link.
        rows: The scores of each model, in the order of the columns.
        metrics: The columns; by the first, rows are sorted.
        lower: Whether lower scores are better.
        ours: The configurations, files beside this one, by what they are called.
        prepare: Writes the data sets into a folder, and yields the folder of each, over which scores are averaged. Its
            last argument is whether to choose by: then a part of train is what to test on, and nothing else is read.
        measure: Trains with the data of a folder, a configuration, a run directory and flags, and returns the scores.
        baselines: Returns the scores of baselines of `data.baselines` on the data of a folder, which have no seed.
    """

    source: str
    rows: dict[str, tuple[float, ...]]
    metrics: tuple[str, ...]
    ours: dict[str, str]
    prepare: Callable[[Path, Path, bool], Iterable[Path]]
    measure: Callable[[Path, Path, Path, list[str]], Scores]
    lower: bool = False
    baselines: Callable[[Path], dict[str, Scores]] = lambda _: {}


def write(folder: Path, name: str, rows: pa.Table) -> None:
    """Writes a file of a data set, in groups of rows that lanes can share."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / f"{name}.parquet", row_group_size=max(1, rows.num_rows // 16))


def train(config: Path, out: Path, flags: Iterable[str]) -> None:
    """Trains as a user would."""
    read_command(["train", str(config), "--out", str(out), *flags])()


def evaluated(out: Path, split: str) -> Scores:
    """Returns the metrics of a run's last evaluation of a split."""
    lines = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    return [line for line in lines if line["split"] == split][-1]


def read_parts(folder: Path) -> dict[str, list[Any]]:
    """Returns the columns of the parts that `predict` or `recommend` has written."""
    return pa.concat_tables(map(pq.read_table, sorted(folder.glob("part-*.parquet")))).to_pydict()
