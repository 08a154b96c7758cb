"""Reads a file that Weights & Biases wrote offline: a log in LevelDB's format of its own messages."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK, HEADER = 32768, 7


def records(file: Path) -> Iterator[Any]:
    """Yields the messages."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, parts = file.read_bytes(), HEADER, b""
    while place + HEADER <= len(content):
        if BLOCK - place % BLOCK < HEADER:  # the end of a block is padded
            place += BLOCK - place % BLOCK
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        parts += content[place + HEADER : place + HEADER + size]
        place += HEADER + size
        if kind in (1, 4):  # whole, or the last part
            yield Record.FromString(parts)
            parts = b""


def history(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of the history."""
    rows = (record.history.item for record in records(file) if record.WhichOneof("record_type") == "history")
    return [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row} for row in rows]
