"""Data and configurations for tests of managed ids."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from jobs import config, write_rows

MANAGED = {"ids": "managed", "rows": 60}
KINDS = {"row_wise": "rowwise_adagrad", "column_wise": "adam", "data_parallel": "adagrad"}


def write_ids(folder: Path) -> Path:
    """Writes 256 rows with ids of 64 bits, some null (`s0`), lists of them (`s1`) and strings (`s2`)."""
    for file in write_rows(folder, [130, 126]).glob("*.parquet"):
        table = pq.read_table(file)
        wide = pa.array([None if n % 17 == 0 else (n - 50) * 10**16 for n in table["s0"].to_pylist()], pa.int64())
        bags = pa.array([[(n - 50) * 10**16, (n - 49) * 10**16][: n % 3] for n in table["s1"].to_pylist()])
        text = pa.array([f"item {n}" for n in table["s2"].to_pylist()])
        for name, column in (("s0", wide), ("s1", bags), ("s2", text)):
            table = table.set_column(table.schema.get_field_index(name), name, column)
        pq.write_table(table, file, row_group_size=64)
    return folder


def with_labels(folder: Path, out: Path, labels: dict[int, float]) -> Path:
    """Writes the same rows in one file with other labels, by row."""
    table = pq.read_table(folder)
    column = table["label"].to_pylist()
    for row, label in labels.items():
        column[row] = label
    out.mkdir()
    place = table.schema.get_field_index("label")
    pq.write_table(table.set_column(place, "label", pa.array(column, pa.float32())), out / "0.parquet", 64)
    return out


def settings(data: Path, kind: str = "row_wise", **changes: object) -> dict:
    """Two features of one table, of which rows are taken all the time, and one with too few rows for a batch."""
    mode = {"planner__mode": "data_parallel"} if kind == "data_parallel" else {"planner__sharding_types": [kind]}
    tree = config(
        data,
        **mode,
        optimizer__sparse={"name": KINDS[kind], "learning_rate": 0.1},
        optimizer__dense={"name": "adamw", "learning_rate": 0.01},
        optimizer__ema={"decay": 0.9, "tables": True},
        **changes,
    )
    shared = MANAGED | {"table": "ids", "evict": "least_recent"}
    tree["data"]["sparse"] |= {"s0": shared, "s1": shared, "s2": {"ids": "managed", "rows": 20}}
    return tree


def rows_of_ids(tensors: dict) -> dict:
    """Returns the tensors of a checkpoint that say which id has which row."""
    return {name: value for name, value in tensors.items() if name.startswith("managed.")}
