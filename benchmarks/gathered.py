"""Measures the loader on histories from a log, beside histories that are written out as lists in Parquet.

Writes docs/guides/long_histories.md.
Takes two minutes of a quiet machine.

Samples are in the order of time, so that neighbours have other users. Both data sets have the same batches, which the
benchmark checks. Rates are of the processor time of one core.
"""

import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.bench.comparison import alternate, median_and_spread
from benchmarks.bench.reading import load, one_core, rate
from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.sort_log.sort_log import sort_log
from trainer.config.data import DataConfig
from trainer.data.dataset import FileSet, find_files
from trainer.data.epoch_order import Lanes
from trainer.data.row_groups import RowGroupReader

GUIDE = ROOT / "docs" / "guides" / "long_histories.md"
LENGTHS = (50, 256, 1024, 4096)
USERS, EVENTS, ITEMS = 300, 9000, 100_000  # events of each user
PLACES = 4_000_000  # elements of the lists of a column, for each length
REPEATS, LANES, BEGIN = 5, 8, 1_600_000_000
KINDS = {"like": 0.02, "play": 0.62, "skip": 0.36}


@dataclass(frozen=True)
class Row:
    """What was measured for a length.

    Attributes:
        gathered: Samples per second of histories from the log, repeat by repeat.
        written: The same of written-out histories.
        bytes: Bytes of a sample with written-out histories.
    """

    gathered: list[float]
    written: list[float]
    bytes: float


def main() -> None:
    """Measures everything and rewrites the table."""
    with tempfile.TemporaryDirectory() as folder, one_core():
        place = Path(folder)
        events = write_log(place)
        log = place / "log"
        event_bytes = sum(file.stat().st_size for file in log.iterdir()) / len(events)
        rows = {length: measured(place, events, length) for length in LENGTHS}
    write_measured(GUIDE, "gathered", render(rows, event_bytes))


def write_log(folder: Path) -> pa.Table:
    """Writes the log, sorted, and returns its events in the order of time."""
    random, events = np.random.default_rng(0), USERS * EVENTS
    made = {
        "user": np.tile(np.arange(USERS), EVENTS),
        "at": BEGIN + np.arange(events) // 5 * 5,
        "item": np.minimum(random.zipf(1.2, events), ITEMS - 1).astype(np.int32),
        "kind": random.choice(len(KINDS), events, p=[*KINDS.values()]).astype(np.int8),
    }
    pq.write_table(pa.table(made), folder / "events.parquet")
    sort_log((str(folder / "events.parquet"),), str(folder / "log"), "user", "at")
    return pa.table(made)


def measured(folder: Path, events: pa.Table, length: int, repeats: int = REPEATS) -> Row:
    """Measures the loader on samples with histories of a length."""
    rows = PLACES // length
    places = np.sort(np.random.default_rng(1).choice(np.arange(USERS * length, len(events)), rows, replace=False))
    samples = pa.table({"user": events["user"].take(places), "at": events["at"].take(places)})
    samples = samples.append_column("label", pa.array(np.zeros(rows, np.float32)))
    group = max(1, min(65_536, 2**22 // length))
    pq.write_table(samples, folder / "samples.parquet", row_group_size=group)
    thin = _settings(folder / "samples.parquet", length, folder / "log")
    fat = _settings(folder / "fat.parquet", length)
    files = find_files("data.train", thin.train, thin)
    _write_out(samples, files, thin, folder / "fat.parquet")
    sides = [(files, thin), (find_files("data.train", fat.train, fat), fat)]
    gathered, written = alternate(repeats, *(lambda side=side: rate(_load(*side)) for side in sides))
    return Row(gathered, written, (folder / "fat.parquet").stat().st_size / rows)


def _write_out(samples: pa.Table, files: FileSet, config: DataConfig, file: Path) -> None:
    """Writes samples with their histories as columns of lists."""
    reader, at = RowGroupReader(files, config), 0
    with pq.ParquetWriter(file, _fat_schema(samples), compression="zstd") as writer:
        for group in files.row_groups:
            column = reader.read(group)
            lists = {name: column(name).cast(_fat_schema(samples).field(name).type) for name in config.history.columns}
            part = samples.slice(at, group.rows)
            writer.write_table(pa.table({**{name: part[name] for name in part.column_names}, **lists}))
            at += group.rows


def _fat_schema(samples: pa.Table) -> pa.Schema:
    return pa.schema([*samples.schema, ("items", pa.list_(pa.int32())), ("kinds", pa.list_(pa.int8()))])


def _settings(file: Path, length: int, log: Path | None = None) -> DataConfig:
    lists: dict[str, Any] = {"pooling": "none", "max_ids": length}
    tree: dict[str, Any] = {
        "train": [str(file)],
        "sparse": {"items": {"rows": ITEMS, **lists}, "kinds": {"rows": len(KINDS), **lists}},
        "global_batch_size": max(LANES, 2**20 // length),
        "shuffle_window_rows": max(1, 2**21 // length),
    }
    if log:
        columns = {"items": "item", "kinds": "kind"}
        tree["history"] = {"log": str(log), "user": "user", "time": "at", "length": length, "columns": columns}
    return DataConfig.model_validate(tree)


def _load(files: FileSet, config: DataConfig) -> Iterator[int]:
    batch = config.global_batch_size // LANES * LANES
    return load(files, config, Lanes(files.rows, LANES, batch))


def render(rows: dict[int, Row], event_bytes: float) -> str:
    """Returns the table of lengths, and the machine."""
    lines = [
        [
            f"{length:,}",
            f"{statistics.median(row.gathered):,.0f}",
            f"{statistics.median(row.written):,.0f}",
            median_and_spread([a / b for a, b in zip(row.gathered, row.written, strict=True)]),
            f"{row.bytes:,.0f}",
            f"{row.bytes / event_bytes:,.0f}",
        ]
        for length, row in rows.items()
    ]
    machine = describe_machine()
    headers = ["Length", "From the log", "Written out", "Ratio", "Bytes a sample", "Times the log"]
    return (
        f"{table(headers, lines)}\n\n"
        "Samples per second of one core's time in the loader, of two lists each, and bytes of a sample whose lists are "
        f"written out (Parquet, zstd) over the {event_bytes:.0f} bytes that an event takes in the log; medians of "
        f"{REPEATS} repeats. {machine['cores']} cores ({machine['processor']})."
    )


if __name__ == "__main__":
    main()
