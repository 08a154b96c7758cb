"""The tables of attention compare two ways to one result."""

import torch

from benchmarks import attention


def test_both_ways_give_one_result():
    found = []
    for is_full in (True, False):
        with attention.attention(is_full):
            found.append(attention.unit_step(600)())
    torch.testing.assert_close(*found)


def test_memory_is_beside_the_full_matrix_and_half_the_length():
    of_blocks = {"kept": 2**20, "recomputed": 2**19}
    found = {256: {"full": 2**22, "blocks": 2**22} | of_blocks, 512: {"blocks": 2**23} | of_blocks}
    assert attention.render_memory(found).splitlines()[2:4] == [
        "| 256 | 4.0 | 4.0 | 1.00 |  | 1.0 | 0.5 |",
        "| 512 |  | 8.0 |  | 2.0 | 1.0 | 0.5 |",
    ]


def test_a_ratio_is_of_both_in_one_turn():
    lines = attention.render_times({1000: [[2.0, 4.0, 4.0], [1.0, 1.0, 4.0]]}).splitlines()
    assert lines[2] == "| 1,000 | 1 | 4e+03 ms | 1e+03 ms | 0.5 (0.25 to 1) |"
