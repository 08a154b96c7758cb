"""Strings as ids: their hash, which is the same on every machine and in every version."""

import hashlib

import numpy as np
import pyarrow as pa

from trainer.rules.nulls import zero_filled
from trainer.rules.plain_types import is_string


def hash_text(array: pa.Array) -> np.ndarray:
    """Hashes each distinct string, `[N]` int64; bytes as the string that they encode in UTF-8."""
    # BLAKE2b rather than hash(), which differs between processes, and than Arrow's hash, which may between versions:
    # a table trained today has to be right for the data of next year.
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    texts = coded.dictionary.cast(pa.large_binary()).to_pylist()  # as bytes: text need not be valid UTF-8
    hashes = np.frombuffer(b"".join(map(hash_bytes, texts)), np.int64)
    return hashes[coded.indices.to_numpy(zero_copy_only=False)]


def as_integers(ids: pa.Array) -> np.ndarray:
    """Returns integers as they are, and strings hashed, `[N]`; nulls as 0 or as the empty string."""
    if is_string(ids.type):
        return hash_text(ids.fill_null("") if ids.null_count else ids)
    return zero_filled(ids)


def hash_bytes(text: bytes) -> bytes:
    """Returns the 8 bytes, little-endian and signed, that stand for a string, given in UTF-8."""
    return hashlib.blake2b(text, digest_size=8).digest()
