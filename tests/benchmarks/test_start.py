"""The parts of a start are seen from outside, in order, and add up to the whole."""

import time

import pytest
from command import write_config
from jobs import config

from benchmarks.start import Part, measure, render

pytestmark = pytest.mark.more("a tool of contributors")


def test_every_part_of_a_start_is_measured(rows, tmp_path):
    file = write_config(tmp_path / "config.toml", config(rows))
    began = time.monotonic()
    parts = measure(str(file), 1, tmp_path / "out")
    assert len({part.name for part in parts}) == len(parts) == 4
    assert all(part.wall_seconds > 0 and part.processor_seconds > 0 for part in parts)
    assert sum(part.wall_seconds for part in parts) < time.monotonic() - began
    assert (tmp_path / "out/metrics.jsonl").read_text().startswith('{"step": 1,')


def test_the_table_has_medians_and_their_sum():
    starts = [[Part("this", seconds, 2 * seconds), Part("that", 1.0, 1.5)] for seconds in (1.0, 7.0, 2.0)]
    lines = render({1: starts, 2: starts}).splitlines()
    assert lines[0] == "| Until | 1 rank, seconds | 1 rank, of processors | 2 ranks, seconds | 2 ranks, of processors |"
    assert lines[2:5] == [
        "| this | 2.00 | 4.00 | 2.00 | 4.00 |",
        "| that | 1.00 | 1.50 | 1.00 | 1.50 |",
        "| all | 3.00 | 5.50 | 3.00 | 5.50 |",
    ]
