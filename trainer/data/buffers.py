"""Memory that is used again.

What is given back to the system comes back cleared, page by page, which takes longer than filling it; and Arrow's and
NumPy's allocators give large arrays back.
"""

import ctypes
import math
import weakref

import numpy as np

LARGE_BYTES = 1 << 16  # smaller arrays come from what malloc keeps anyway

unused_blocks: dict[int, np.ndarray] = {}  # by identity, the longest unused first; each operation on it is atomic


def empty(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Returns an array to be filled; its memory is used again when nobody refers to it, or to a view of it, any more.

    No more arrays are kept than were ever in use at once.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, dtype)
    block = _block(size)
    owner = (ctypes.c_byte * block.size).from_buffer(block.data)  # every view refers to it, and it can be watched
    weakref.finalize(owner, unused_blocks.__setitem__, id(block), block)
    return np.ndarray(shape, dtype, memoryview(owner))


def _block(size: int) -> np.ndarray:
    """Returns an unused block that is large enough, but not twice as large, or a new one in place of another."""
    for key, block in list(unused_blocks.items()):
        if size <= block.size <= 2 * size and unused_blocks.pop(key, None) is not None:
            return block
    for key in list(unused_blocks)[:1]:
        unused_blocks.pop(key, None)
    return np.empty(size, np.uint8)
