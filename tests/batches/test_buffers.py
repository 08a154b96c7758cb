"""Arrays in memory that is used again: never while anybody can still see it."""

import gc

import numpy as np
import pytest
import torch

from trainer.batches.rows import LARGE_BYTES, empty, unused_blocks


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize("rows", [0, 10, LARGE_BYTES])
def test_shape_and_type(rows):
    array = empty((3, rows), np.int32)
    assert (array.shape, array.dtype) == ((3, rows), np.int32)
    assert array.flags.c_contiguous
    assert array.flags.writeable


def test_memory_is_used_again_when_the_last_view_is_gone():
    array = empty((2, LARGE_BYTES), np.float32)
    before = address(array)
    view = torch.from_numpy(array[:, 5:].T)
    del array
    gc.collect()
    other = empty((2, LARGE_BYTES), np.float32)
    assert address(other) != before
    del view
    gc.collect()
    assert address(empty((2, LARGE_BYTES - 9), np.float32)) == before


def test_a_small_array_does_not_take_a_large_block():
    array = empty((64 * LARGE_BYTES,), np.uint8)
    before = address(array)
    del array
    gc.collect()
    assert address(empty((LARGE_BYTES,), np.uint8)) != before


def test_no_more_of_a_size_is_kept_than_was_in_use_at_once():
    def kept() -> int:
        return sum(map(len, unused_blocks.values()))

    held = [empty((64 * LARGE_BYTES - n,), np.uint8) for n in range(3)]
    del held
    before = kept()
    for n in range(40):
        empty((64 * LARGE_BYTES - n,), np.uint8)
    assert kept() == before
