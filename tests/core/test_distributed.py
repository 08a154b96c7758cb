"""What rank 0 makes for all ranks."""

import pytest
from forked import run_forked
from slow_rank0 import make_slowly


@pytest.mark.parametrize(("refusal", "found"), [(None, "made by rank 0"), ("the data is wrong", "exit code 2")])
def test_ranks_wait_for_rank_0_longer_than_a_collective_may_take(tmp_path, refusal, found):
    run_forked(make_slowly, tmp_path, refusal, folder=tmp_path)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == [found] * 2
    assert ("error: the data is wrong" in (tmp_path / "forked-errors.txt").read_text()) == bool(refusal)
