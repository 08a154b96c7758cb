"""The data rules in torch: what trainer/data/decode.py makes of raw columns, as a part of an exported model."""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor, nn

from trainer.config.data import DataConfig
from trainer.config.features import TIMES, DenseFeature, SparseFeature
from trainer.core.splitmix import splitmix64
from trainer.data.managed import FREE, SHARED, own_rows
from trainer.data.transforms import DAY, HOUR, day_start
from trainer.data.vocabulary import open_vocabulary

INT64_MAX = 2**63 - 1
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"log1p": torch.log1p, "log3": lambda x: torch.log(x + 3)}

IdRule = Callable[[Tensor], Tensor]
"""Returns rows of a table, `[N]` int64, for raw ids, `[N]` int64."""


def dense_values(raw: Tensor, present: Tensor, feature: DenseFeature) -> Tensor:
    """Returns what the model reads for raw values, `[B]` float32.

    Args:
        raw: Numbers, float32; or times in seconds since 1970, int64; anything where they are missing.
        present: Where they are not, `[B]`.
        feature: The feature.
    """
    values = _present_values(raw, present, feature)
    if feature.clip:
        values = values.clamp(*feature.clip)
    if feature.transform in FUNCTIONS:
        values = FUNCTIONS[feature.transform](values)
    return values if (feature.mean, feature.std) == (0.0, 1.0) else (values - feature.mean) / feature.std


def _present_values(raw: Tensor, present: Tensor, feature: DenseFeature) -> Tensor:
    """Returns numbers before the transform, or those that it makes of nulls and times, float32."""
    if feature.transform == "is_missing":
        return (~present).float()
    if feature.transform not in TIMES:
        return torch.where(present, raw, feature.missing)
    seconds = torch.where(present, raw, 0)
    if feature.transform == "age":
        values = ((day_start(str(feature.now)) - seconds).double() / DAY).float()
    else:
        values = part_of_time(seconds, feature.transform).float()
    return torch.where(present, values, feature.missing)


def part_of_time(seconds: Tensor, part: str) -> Tensor:
    """Returns the hour of times in seconds since 1970, or their weekday, int64."""
    return seconds // HOUR % 24 if part == "hour" else (seconds // DAY + 3) % 7


def crossed(columns: Sequence[Tensor]) -> Tensor:
    """Returns an id for each combination of ids, int64."""
    return reduce(lambda ids, more: splitmix64(ids) ^ more, columns)


class Buckets(nn.Module):
    """Makes ids of numbers.

    Args:
        edges: Where buckets begin, but for the first.
    """

    def __init__(self, edges: list[float]) -> None:
        super().__init__()
        self.edges = nn.Buffer(torch.tensor(edges))

    def forward(self, numbers: Tensor) -> Tensor:
        """Returns the buckets of numbers, `[B]` float32 to `[B]` int64."""
        return (numbers[:, None] >= self.edges).sum(1)


def id_rule(feature: SparseFeature, unsigned: bool, listed: "ListedIds | None") -> IdRule:
    """Returns the rule of a feature.

    Args:
        feature: The feature.
        unsigned: Whether its ids are numbers of 64 bits without a sign, in the bits of an int64.
        listed: The ids that have rows of their own, for those rules that list them.
    """
    rule = listed or _rule_of_rows(feature, unsigned)
    return (lambda ids: rule(ids + feature.offset)) if feature.offset else rule


def _rule_of_rows(feature: SparseFeature, unsigned: bool) -> IdRule:
    rows = feature.rows
    if feature.ids == "hash":
        salt = splitmix64(torch.tensor(feature.salt)).item() if feature.salt else 0
        return lambda ids: _unsigned_modulo(splitmix64(ids ^ salt if salt else ids), rows)
    if feature.ids == "modulo":
        return lambda ids: _unsigned_modulo(ids, rows) if unsigned else torch.remainder(ids, rows)
    return lambda ids: ids


class ListedIds(nn.Module):
    """The rows of ids that are listed: those of a vocabulary, or managed ones.

    Args:
        keys: The ids, `[K]` int64, sorted.
        rows: The row of each, `[K]` int64.
        unseen_rows: Rows that other ids are hashed over; unset for managed ids, where they share one row.
    """

    def __init__(self, keys: Tensor, rows: Tensor, unseen_rows: int | None) -> None:
        super().__init__()
        self.keys, self.rows = nn.Buffer(keys), nn.Buffer(rows)
        self._unseen_rows = unseen_rows

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows of ids, `[N]` to `[N]`."""
        if self._unseen_rows is None:
            ids = ids & INT64_MAX  # as the loader cuts managed ids
            unseen = torch.full_like(ids, SHARED)
        else:
            unseen = _unsigned_modulo(splitmix64(ids), self._unseen_rows)
        places = torch.searchsorted(self.keys, ids).clamp(max=self.keys.shape[0] - 1)
        return torch.where(self.keys[places] == ids, self.rows[places], unseen)


def ids_with_rows(data: DataConfig, managed: dict[str, Tensor]) -> dict[str, ListedIds]:
    """Returns the ids that have rows of their own, of each table that lists some.

    Args:
        data: The data.
        managed: The id of each row of every table with managed ids, `[R]`.
    """
    found = {}
    for table, (name, *_) in data.features_of_tables().items():
        if data.sparse[name].ids == "vocabulary":
            known = open_vocabulary(name, data.sparse[name])
            found[table] = ListedIds(
                torch.from_numpy(known.keys), torch.from_numpy(known.rows).long(), known.unseen_rows
            )
        elif table in managed:
            found[table] = _managed_ids(managed[table])
    return found


def _managed_ids(ids: Tensor) -> ListedIds:
    """Returns the ids of a table's rows, of which the first is that of ids without a row."""
    rows = torch.from_numpy(own_rows(ids.numpy()))
    keys, order = ids[rows].sort()
    if not len(keys):  # an id that no client can send: they are at least 0
        keys, rows, order = torch.tensor([FREE]), torch.tensor([SHARED]), torch.tensor([0])
    return ListedIds(keys, rows[order], None)


def _unsigned_modulo(bits: Tensor, rows: int) -> Tensor:
    """Returns numbers of 64 bits without a sign modulo less than 2^31, which torch has signed only."""
    return (((bits >> 1) & INT64_MAX) % rows * 2 + (bits & 1)) % rows
