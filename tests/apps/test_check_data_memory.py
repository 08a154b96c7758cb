"""A check of all rows takes the memory of a row group and of its sample, on data many times as large."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.more("measures processes of their own")]

ROWS, GROUPS, COLUMNS = 65_536, 64, 32
TIMES = 20

CHECK = """
import resource, sys
from trainer.__main__ import main

def check(file):
    assert main(["check-data", "--source", file, "--all", "True", "--rows", "5000"]) == 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

print("grown:", check(sys.argv[2]) - check(sys.argv[1]))
"""


def write_groups(file, groups):
    """Writes a row group so many times, which takes no time to draw, and returns its bytes in memory."""
    random = np.random.default_rng(0)
    numbers = {f"d{n}": random.standard_normal(ROWS) for n in range(COLUMNS // 2)}
    ids = {f"cat_{n}": random.integers(0, 10_000, ROWS) for n in range(COLUMNS // 2)}
    table = pa.table({**numbers, **ids, "label": (random.random(ROWS) < 0.3).astype(np.float32)})
    with pq.ParquetWriter(file, table.schema, compression="none", use_dictionary=False) as writer:
        for _ in range(groups):
            writer.write_table(table, row_group_size=ROWS)
    return table.nbytes * groups


def test_memory_is_bounded_on_data_twenty_times_as_large(tmp_path):
    small, large = tmp_path / "small.parquet", tmp_path / "large.parquet"
    write_groups(small, 1)
    size = write_groups(large, GROUPS)
    done = subprocess.run([sys.executable, "-c", CHECK, small, large], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout.rpartition("grown:")[2]) * 1024
    assert size > 1e9
    assert grown < size / TIMES
