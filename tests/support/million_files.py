"""Sends the files of a large data set to ranks, for tests."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch.distributed as dist
from ranks import run_on_ranks

from trainer.core.distributed import broadcast_from_rank0, process_group
from trainer.data.dataset import FileSet, RowChoice, RowGroup
from trainer.data.file_outlines import COLUMNS, Outlines
from trainer.data.files import DataFiles

FILES = 100_000


def make_files() -> FileSet:
    """Returns files with random names, sizes and rows, of some of which data.select chooses rows."""
    random = np.random.default_rng(0)
    rows = random.integers(1, 10_000, (FILES, 2))
    columns = {
        "url": [f"s3://bucket/{name:020d}.parquet" for name in np.sort(random.integers(1 << 62, size=FILES))],
        "version": [""] * FILES,
        "size": random.integers(1, 1 << 30, FILES),
        "row_groups": [*rows],
        "index": pa.nulls(FILES, pa.large_binary()),
        "schema": np.zeros(FILES, np.int32),
    }
    files = DataFiles.of(Outlines(pa.table(columns, COLUMNS), (pa.schema([("label", pa.float32())]),)))
    chosen = tuple(RowGroup(file, 0, int(rows[file, 0]), RowChoice(0, None, file, 1)) for file in range(0, FILES, 9))
    return FileSet(files, chosen, seed=3)


def send_files(out: str) -> None:
    """Writes whether the files are those of rank 0, and the bytes of the largest pickled object, to `out/RANK`."""
    pickled, send = [], dist.broadcast_object_list

    def measured(values, *arguments, **options):
        send(values, *arguments, **options)
        pickled.append(len(pickle.dumps(values)))

    dist.broadcast_object_list = measured
    with process_group() as context:
        found = broadcast_from_rank0(context, make_files)
        after = broadcast_from_rank0(context, lambda: {"small": np.arange(3), "large": np.arange(1 << 20)})
    is_equal = (
        found == make_files() and after["small"].tolist() == [0, 1, 2] and int(after["large"][-1]) == (1 << 20) - 1
    )
    Path(out, str(context.rank)).write_text(f"{is_equal} {max(pickled) < 1 << 20}")


def send_files_to(ranks: int, out: str) -> None:
    """Does so on forked ranks."""
    run_on_ranks(ranks, send_files, out)
