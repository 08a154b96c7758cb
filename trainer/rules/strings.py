"""Hashes strings to ids, with the same hash on every machine and in every version."""

import hashlib

import numpy as np
import pyarrow as pa

from trainer.rules.nulls import zero_filled
from trainer.rules.plain_types import is_string


def hash_text(array: pa.Array) -> np.ndarray:
    """Hashes each distinct string, `[N]` int64; bytes count as the UTF-8 of a string."""
    # BLAKE2b, because hash() differs between processes and Arrow's hash may differ between versions: a table trained
    # today has to be right for the data of next year.
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    texts = coded.dictionary.cast(pa.large_binary()).to_pylist()  # as bytes: text need not be valid UTF-8
    hashes = np.frombuffer(b"".join(map(hash_bytes, texts)), np.int64)
    return hashes[coded.indices.to_numpy(zero_copy_only=False)]


def as_integers(ids: pa.Array) -> np.ndarray:
    """Returns integers unchanged and strings hashed, `[N]`; nulls as 0 or the empty string."""
    if is_string(ids.type):
        return hash_text(ids.fill_null("") if ids.null_count else ids)
    return zero_filled(ids)


def hash_bytes(text: bytes) -> bytes:
    """Returns the hash of a string in UTF-8: 8 bytes, little-endian and signed."""
    return hashlib.blake2b(text, digest_size=8).digest()
