"""What grows with the number of ranks is measured for every row, fitted, and marked where it exceeds a limit."""

import pytest

from benchmarks import scale
from benchmarks.scale import BYTES, RANKS, SECONDS, Measured, Row, render, rows


@pytest.mark.more("measures")
@pytest.mark.slow
def test_every_row_has_a_value(monkeypatch):
    for name, value in {"ROW_GROUPS": 1000, "TABLES": 3, "SHARDS": 8, "CHECKPOINTS": 2}.items():
        monkeypatch.setattr(scale, name, value)
    for kept in (scale.file_set, scale.planned, scale.local_plans, scale.global_plan, scale.metadata_of, scale.shapes):
        kept.cache_clear()
    found = {row.name: row.measure(16) for row in rows()}
    assert min(found.values()) > 0
    assert found["rows that a rank decodes for each of its own, run begun on 8"] == 2


def measured(unit, power, at_1024, phase="start", sent=False):
    """A row that grows with a power of the ranks."""
    row = Row(phase, "a row", unit, lambda n: at_1024 * (n / 1024) ** power, sent=sent)
    return Measured(row, {n: row.measure(n) for n in RANKS})


@pytest.mark.parametrize(
    ("one", "over"),
    [
        (measured(SECONDS, 1, 59.0), ""),
        (measured(SECONDS, 1, 61.0), "60 s"),
        (measured(SECONDS, 2, 5.0), "square"),
        (measured(SECONDS, 1, 1e-5, "step"), ""),
        (measured(SECONDS, 1, 1e-3, "step"), "1 % of a step of 20 ms"),
        (measured(BYTES, 0, 2**21), ""),
        (measured(BYTES, 0, 2**21, sent=True), "1 MiB to all ranks"),
    ],
)
def test_what_exceeds_a_limit_is_marked(one, over):
    assert one.over == over


def test_the_table_has_the_exponents():
    lines = render([measured(SECONDS, power, 1.0) for power in (0, 1, 1.5, 2)], RANKS).splitlines()
    assert [line.split(" | ")[-2] for line in lines[2:]] == ["0", "1", "1.5", "2"]
    assert lines[3].startswith("| start | a row | 977 µs | 3.9 ms | 16 ms | 62 ms | 250 ms | 1 s | 4 s |")
