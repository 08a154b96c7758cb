"""The figures of each split, as a table and for `summary.json`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from torchx_recsys.apps.engines.database import Database
from torchx_recsys.apps.split.conditions import shown
from torchx_recsys.apps.split.cuts import SPLIT, SPLITS, Keys
from torchx_recsys.apps.split.database import name
from torchx_recsys.apps.split.labels import Label
from torchx_recsys.apps.split.log import ROW


def figures(database: Database, keys: Keys, labels: Sequence[Label]) -> dict[str, dict[str, Any]]:
    """Returns figures of each split that has rows, by its name."""
    found = {}
    for number, split in enumerate(SPLITS):
        of = {"rows": "count(*)"}
        of |= {f"{key}s": f"count(DISTINCT {name(column)})" for key, column in _who(keys).items()}
        of |= {f"mean {label.name}": f"avg({name(label.name)})" for label in labels if not label.classes}
        if keys.time:
            of |= {"from": f"min({name(keys.time)})", "to": f"max({name(keys.time)})"}
        rows = f"FROM events JOIN splits USING ({name(ROW)}) WHERE {SPLIT} = {number}"
        values = dict(zip(of, database.row(f"SELECT {', '.join(of.values())} {rows}"), strict=True))
        if values["rows"]:
            found[split] = values | (_unseen(database, keys, number) if number else {})
    return found


def _who(keys: Keys) -> dict[str, str]:
    return {key: column for key in ("user", "item") if (column := getattr(keys, key))}


def _unseen(database: Database, keys: Keys, number: int) -> dict[str, int]:
    """Returns the numbers of users and items that are not in train."""
    return {
        f"new {key}s": database.value(
            f"SELECT count(*) FROM (SELECT {name(column)} FROM events JOIN splits USING ({name(ROW)}) "
            f"WHERE {SPLIT} = {number} AND {name(column)} IS NOT NULL EXCEPT "
            f"SELECT {name(column)} FROM events JOIN splits USING ({name(ROW)}) WHERE {SPLIT} = 0)"
        )
        for key, column in _who(keys).items()
    }


def as_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Returns the figures as a table for the terminal."""
    columns = list(dict.fromkeys(key for values in found.values() for key in values))
    lines = [[split, *(_cell(values.get(column)) for column in columns)] for split, values in found.items()]
    align = ("left", *["right"] * len(columns))
    return tabulate(lines, ["split", *columns], disable_numparse=True, colalign=align)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return shown(value)
