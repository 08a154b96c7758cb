"""The table of the demo's parts."""

from benchmarks.demo import render


def test_parts_are_medians_over_demos():
    demos = [[(20.0, 25.0), (5.0, 4.0), (10.0, 9.0)], [(30.0, 26.0), (4.0, 3.0), (12.0, 8.0)]]
    lines = render({"pip": demos}).splitlines()
    assert lines[0] == "| Part | pip, seconds | pip, of processors |"
    assert lines[2:6] == [
        "| the environment | 25.0 | 25.5 |",
        "| the data | 4.5 | 3.5 |",
        "| training | 11.0 | 8.5 |",
        "| all | 40.5 | 37.5 |",
    ]
    assert "medians of 2 demos" in lines[-1]
