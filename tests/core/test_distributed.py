"""What rank 0 makes for all ranks, and the GPUs of a host."""

import pytest
from forked import run_forked
from million_files import send_files_to
from slow_rank0 import make_slowly

from trainer.core.distributed import check_gpus
from trainer.core.errors import InputError


@pytest.mark.parametrize(("refusal", "found"), [(None, "made by rank 0"), ("the data is wrong", "exit code 2")])
def test_ranks_wait_for_rank_0_longer_than_a_collective_may_take(tmp_path, refusal, found):
    run_forked(make_slowly, tmp_path, refusal, folder=tmp_path)
    assert [(tmp_path / f"rank-{rank}").read_text() for rank in (0, 1)] == [found] * 2
    assert ("error: the data is wrong" in (tmp_path / "forked-errors.txt").read_text()) == bool(refusal)


def test_large_columns_are_sent_beside_what_is_pickled(tmp_path):
    run_forked(send_files_to, 3, str(tmp_path), folder=tmp_path)
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["True True"] * 3


def test_a_host_needs_a_gpu_for_each_of_its_ranks():
    check_gpus(8, 8)
    check_gpus(1, 8)
    with pytest.raises(InputError, match=r"has 2 ranks on this host, which has 1 GPU; .* at most -j NODESx1, "):
        check_gpus(2, 1)
