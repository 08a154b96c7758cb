"""`python -m trainer plan`, called in this process, on tables that have no data."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from command import write_config
from jobs import config

from trainer.__main__ import main as trainer


def write_tables(
    folder: Path, rows: Mapping[str, int], hotness: float = 3.0, batch: int = 16384, **changes: Any
) -> Path:
    """Writes a configuration of tables of 64 columns, by their rows."""
    tree = config(
        folder / "nowhere",
        data__sparse={name: {"rows": number, "hotness": hotness} for name, number in rows.items()},
        data__global_batch_size=batch,
        model__embedding_dim=64,
        **changes,
    )
    return write_config(folder / "config.toml", tree)


def planned(capsys: Any, *words: object) -> str:
    """Returns what the command prints."""
    assert trainer(["plan", *map(str, words)]) == 0
    return capsys.readouterr().out


def refused(capsys: Any, *words: object) -> str:
    """Returns the one line that the command ends with."""
    assert trainer(["plan", *map(str, words)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line
