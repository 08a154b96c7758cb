"""The list of what `make measure` measures, which docstrings of the benchmarks are."""

import re
from pathlib import Path

import pytest

from benchmarks.__main__ import descriptions, main

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "text"), descriptions().items())
def test_a_benchmark_names_what_it_writes_and_takes(name, text):
    writes, takes = re.search(r"\. Writes (.+)\. Takes (.+)\.$", text).groups()
    assert takes
    assert all((ROOT / path).exists() for path in re.findall(r"docs/[\w/.]+\w", writes))


def test_a_name_that_is_wrong_is_refused_with_those_that_are_right(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["cost"])
    assert "no such benchmark: 'cost'; choose from attention, calls, checkpoint_deltas, " in capsys.readouterr().err
