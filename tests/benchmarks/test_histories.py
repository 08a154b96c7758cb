"""The tables of steps over histories show the slowest rank, and rates beside those with padding."""

import pyarrow.parquet as pq
import pytest

from benchmarks import histories


def test_histories_are_a_quarter_of_the_longest_in_the_mean(tmp_path):
    histories.write_histories(tmp_path / "data", longest=40, rows=256)
    rows = pq.read_table(tmp_path / "data")
    lengths = [len(one) for one in rows["seen"].to_pylist()]
    assert sum(lengths) / len(lengths) == pytest.approx(10, abs=0.1)
    assert 38 <= max(lengths) <= 40
    assert lengths != sorted(lengths)
    assert [len(one) for one in rows["seen_at"].to_pylist()] == lengths


def test_the_slowest_rank_is_over_the_mean_of_the_ranks():
    found = {
        "as they come": histories.Measured([[1.0, 3.0], [1.0, 1.0]], [0.5, 0.25], 2**30),
        "to ranks": histories.Measured([[2.0, 2.0], [1.0, 1.0]], [0.5, 0.251], 2**29),
        "to steps": histories.Measured([[2.0, 1.0], [1.0, 2.0]], [0.7, 0.3], 2**28),
    }
    assert histories.render_dealt(found).splitlines()[2:5] == [
        "| as they come | 1.25 | 1.50 | 2.00 | 1.00 GiB |  |",
        "| to ranks | 1.00 | 1.00 | 1.33 | 0.50 GiB | 4e-03 |",
        "| to steps | 1.33 | 1.33 | 1.33 | 0.25 GiB |  |",
    ]


def test_ratios_are_of_repeats():
    lines = histories.render_padded({"hstu": [[20.0, 40.0, 60.0], [10.0, 10.0, 20.0]]}).splitlines()
    assert lines[2] == "| `hstu` | 40 | 10 | 3 (2 to 4) |"
