"""A pool of large buffers for windows and batches."""

import ctypes
import math
import weakref

import numpy as np

# Windows and batches have nearly the same size again and again, and the allocators make that slow. NumPy's malloc gives
# large blocks back to the system. Mimalloc, which Arrow uses, gives back blocks that were unused for 10 ms, which is
# nearly always, as training comes between. The system clears such blocks page by page, which takes longer than filling
# them: without the pool the loader took up to twice as long.
LARGE_BYTES = 1 << 16  # malloc keeps smaller blocks anyway

# Elements between the end of a column and the beginning of the next one. Columns of whole row groups are a power of 2
# in bytes. Without the gap their addresses would map to the same few places of the cache, and transposing a batch took
# twice as long.
APART = 16

# By size, a power of 2: arrays of nearly the same size share blocks, and bytes that are never written take no memory.
# Each operation is atomic, as threads make arrays and give them up at the same time.
unused_blocks: dict[int, list[np.ndarray]] = {}


def empty(shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Returns an array to be filled. Its memory is reused once nothing refers to the array or to a view of it.

    The pool never keeps more blocks of a size than were in use at once.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LARGE_BYTES:
        return np.empty(shape, dtype)
    power = 1 << (size - 1).bit_length()
    unused = unused_blocks.setdefault(power, [])
    try:
        block = unused.pop()
    except IndexError:
        block = np.empty(power, np.uint8)
    # NumPy points the base of a view to the array that owns the memory, past all between, so an array cannot be watched
    # for its views. All of them do refer to a ctypes object, and so do tensors made from them.
    owner = (ctypes.c_byte * block.size).from_buffer(block.data)
    weakref.finalize(owner, unused.append, block)
    return np.ndarray(shape, dtype, memoryview(owner))


def empty_block(columns: int, rows: int, dtype: np.typing.DTypeLike) -> np.ndarray:
    """Returns a block of columns to be filled, `[columns, rows]`, as `empty` does."""
    return empty((columns, rows + APART), dtype)[:, :rows]
