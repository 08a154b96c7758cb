"""Hashes strings to ids, with the same hash on every machine and in every version."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.rules.nulls import zero_filled
from trainer.rules.plain_types import is_list, is_string


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


def to_texts(array: pa.Array) -> list[Any]:
    """Returns plain strings or bytes, in lists or not, as text in Python, from which `bytes_of` makes the same bytes.

    A byte that is not UTF-8 becomes U+DC80 to U+DCFF, as by Python's error handler surrogateescape.
    """
    if is_list(array.type):
        texts, lengths = iter(to_texts(array.flatten())), array.value_lengths().to_pylist()
        return [None if length is None else [next(texts) for _ in range(length)] for length in lengths]
    found = (array.dictionary_decode() if pa.types.is_dictionary(array.type) else array).cast(pa.large_binary())
    return [None if one is None else one.decode(errors="surrogateescape") for one in found.to_pylist()]


def bytes_of(text: str) -> bytes:
    """Returns the bytes of text in UTF-8, and of U+DC80 to U+DCFF the bytes that they stand for.

    Raises:
        UnicodeEncodeError: The text has another surrogate, which is no character by itself.
    """
    return text.encode(errors="surrogateescape")


def hash_bytes(text: bytes) -> bytes:
    """Returns the hash of a string in UTF-8: 8 bytes, little-endian and signed."""
    return hashlib.blake2b(text, digest_size=8).digest()
