"""Digests of the events of a log: its fingerprint, which `sort-log` writes and `check-data` computes again."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from trainer.data.history.log import EventLog

KEYS = ""  # the name of the users' keys, which no column has


class Digests:
    """A digest of each column of events, in their order."""

    def __init__(self) -> None:
        self._of: dict[str, Any] = {}

    def add(self, column: str, values: np.ndarray) -> None:
        """Adds values of a column."""
        self._of.setdefault(column, hashlib.blake2b(digest_size=16)).update(np.ascontiguousarray(values).view(np.uint8))

    def fingerprint(self, types: Mapping[str, str], texts: Mapping[str, pa.Array]) -> str:
        """Returns one text for all columns, their types and their texts."""
        of_texts = {name: _digest_of(one.cast(pa.large_binary())) for name, one in texts.items()}
        facts = [{name: one.hexdigest() for name, one in self._of.items()}, dict(types), of_texts]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def _digest_of(texts: pa.Array) -> str:
    """Returns a digest of texts in their order."""
    digest = hashlib.blake2b(digest_size=16)
    if len(texts):
        offsets = np.frombuffer(texts.buffers()[1], np.int64, len(texts) + 1, texts.offset * 8)
        digest.update(np.diff(offsets).tobytes())
        digest.update(memoryview(texts.buffers()[2])[offsets[0] : offsets[-1]])
    return digest.hexdigest()


def fingerprint_of(log: EventLog) -> str:
    """Computes the fingerprint of a mapped log from its events, all of which are read."""
    digests = Digests()
    for keys, events in log.blocks():
        digests.add(KEYS, keys)
        for name, column in zip(events.schema.names, events.columns, strict=True):
            width = column.type.bit_width // 8
            digests.add(name, np.frombuffer(column.buffers()[1], f"u{width}", len(column), column.offset * width))
    types = {field.name: str(field.type) for field in events.schema}
    return digests.fingerprint(types, log.read_texts())
