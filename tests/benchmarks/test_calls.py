"""Calls of a step are counted by the package that they call into."""

from collections import Counter

import pytest

from benchmarks.calls import COUNTED, count, owner_of, render
from trainer.rules import plain_types


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("/home/me/trainer/training/step.py", "Trainer"),
        ("/home/me/trainer/.venv/lib/python3.11/site-packages/torchrec/sparse/jagged_tensor.py", "TorchRec"),
        ("/home/me/trainer/.venv/lib/python3.11/site-packages/torch/_tensor.py", "torch"),
        ("/usr/lib/python3.11/contextlib.py", "Others"),
    ],
)
def test_a_call_belongs_to_the_package_that_is_called(file, owner):
    assert owner_of(file) == owner


def test_calls_are_counted_for_a_step():
    code = compile("def called():\n    pass\n\ncalled()\ncalled()", plain_types.__file__, "exec")
    found = {}
    assert count(lambda: exec(code, found))["Trainer"] == 3, f"the code and two calls in each of {COUNTED} steps"


def test_the_table_sums_the_calls():
    shown = render({"a model": (Counter(Trainer=200, torch=1000, Others=10), 2.346)})
    assert "| a model | 200 | 0 | 0 | 1,000 | 10 | 1,210 | 2.35 |" in shown
