"""The planner beside TorchRec's: never worse by TorchRec's own estimate, which rates the plans of both."""

import pytest

from benchmarks.planners import cases, compare, search_plan
from benchmarks.torchrec_planner import torchrec_plan

pytestmark = pytest.mark.slow

QUICK = ("8 tables", "two large of 12", "narrow", "four hosts of 4", "tables on the host")

MATRIX = "case", lambda whole: [case for case in cases() if whole or case.name in QUICK]


def test_no_plan_is_worse_than_torchrecs(case):
    ours, theirs = (compare(case, planner)[0] for planner in (search_plan, torchrec_plan))
    assert ours <= theirs * 1.001
