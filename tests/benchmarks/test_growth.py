"""The growth of a step's processor time is measured for every size, and drawn as it was measured."""

import re
from itertools import product

import pytest

from benchmarks import growth
from benchmarks.bench import growth as bench_growth
from benchmarks.bench.growth import BATCHES, TABLES, measure_growth, render_growth
from trainer.core.distributed import process_group
from trainer.core.run_directory import RunDirectory


@pytest.mark.more("measures")
@pytest.mark.slow
def test_each_number_of_tables_is_measured_in_each_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_growth, "TABLES", (2, 3))
    monkeypatch.setattr(bench_growth, "BATCHES", (64, 128))
    with process_group() as context:
        costs = measure_growth(RunDirectory(str(tmp_path / "new")), context, steps=2, repeats=3)
    assert [(one.tables, one.samples) for one in costs] == [*product((2, 3), (64, 128))]
    assert all(len(one.milliseconds) == 3 and min(one.milliseconds) > 0 for one in costs)
    head, _, *rows = render_growth(costs).splitlines()
    assert head.split() == ["tables", "64", "samples", "128", "samples"]
    assert [row.split()[0] for row in rows] == ["2", "3"]


@pytest.fixture
def found():
    """Times that double with ranks, and are ten times higher in the largest batch."""
    times = dict(zip(BATCHES, (1.0, 1.0, 2.0, 5.0, 10.0), strict=True))
    return {
        (ranks, tables, samples): ranks * times[samples]
        for ranks, tables, samples in product(growth.RANKS, TABLES, BATCHES)
    }


def test_the_figure_has_a_curve_for_each_number_of_tables_and_of_ranks(found):
    drawn = growth.draw(found).decode()
    curves = [
        points
        for points, color in re.findall(r'points="([^"]+)" fill="none" stroke="([^"]+)"', drawn)
        if color in growth.COLORS
    ]
    heights = [[float(point.split(",")[1]) for point in points.split()] for points in curves]
    assert len(heights) == 6
    of_tables, of_ranks = heights[:3], heights[3:]
    assert of_tables[0] == of_tables[1] == of_tables[2]
    decade = of_tables[0][0] - of_tables[0][-1]
    assert decade == growth.PLOT  # the chart of one rank goes from 1 to 10 ms
    assert of_ranks[0][0] - of_ranks[1][0] == pytest.approx(of_ranks[1][0] - of_ranks[2][0], abs=0.2)
    assert {"200 tables", "1 rank", "4 ranks", "65,536"} <= {*re.findall(r">([^<]+)</text>", drawn)}


def test_the_tables_have_a_row_for_each_number_of_ranks_and_of_tables(found):
    facts = {"machine": {"cores": 2, "processor": "any"}, "versions": {"torch": "2.13.0"}}
    lines = growth.render(found, growth.beside_one_rank([found]), facts).splitlines()
    assert lines[2] == "| 1 | 3 | 1 | 1 | 2 | 5 | 10 |"
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 9 + 2 + 6
    assert rows[-1] == "| 4 | 200 | 0.06 | 0.06 | 0.06 | 0.06 | 0.06 |"  # each of four ranks takes four times as long


def test_ranks_are_compared_within_a_turn(found):
    """A machine that is twice as slow in one turn of three changes no ratio."""
    slow = {cell: 2 * time for cell, time in found.items()}
    assert growth.beside_one_rank([found, slow, found]) == growth.beside_one_rank([found])
    assert growth.beside_one_rank([found])[2, 26, 1024] == 1 / 4
