"""The rules of features in torch, with their arrays as weights of an exported model."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainer.config.data import DataConfig
from trainer.config.features import SparseFeature
from trainer.rules.base import IdRule as Rule
from trainer.rules.derived_ids import bucketized_in_torch
from trainer.rules.managed import Managed
from trainer.rules.registry import OwnRule, id_rule

IdRule = Callable[[Tensor], Tensor]
"""Returns rows of a table, `[N]` int64, for raw ids, `[N]` int64."""


class Buckets(nn.Module):
    """Turns numbers into ids.

    Args:
        edges: Where buckets begin, without the first bucket.
    """

    def __init__(self, edges: list[float]) -> None:
        super().__init__()
        self.edges = nn.Buffer(torch.tensor(edges))

    def forward(self, numbers: Tensor) -> Tensor:
        """Returns the buckets of numbers, `[B]` float32 to `[B]` int64."""
        return bucketized_in_torch(numbers, self.edges)


def torch_rule(name: str, feature: SparseFeature, unsigned: bool, listed: "ListedIds | None") -> IdRule:
    """Returns the rule for the ids of a feature.

    Args:
        name: The feature.
        feature: Its keys.
        unsigned: Whether the ids are uint64, in the bits of an int64.
        listed: The rule of a feature that lists ids; unset for a program that takes embeddings.
    """
    rule = id_rule(name, feature)
    if rule.lists_ids:
        return listed or (lambda ids: ids)
    offset = offset_in_torch(name, feature)
    return lambda ids: rule.torch_rows_of(ids + offset if offset else ids, {}, unsigned)


def offset_in_torch(name: str, feature: SparseFeature) -> int:
    """Returns the offset to add in the program; 0 if the loader adds it, before a carried rule."""
    rule = id_rule(name, feature)
    return 0 if isinstance(rule, OwnRule) and rule.is_carried else feature.offset


class ListedIds(nn.Module):
    """A rule that lists ids, with its arrays as weights.

    Args:
        rule: The rule.
    """

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self._rule = rule
        for name, array in rule.arrays().items():
            self.register_buffer(name, torch.from_numpy(array))

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the rows of ids, `[N]` to `[N]`."""
        return self._rule.torch_rows_of(ids, dict(self.named_buffers()), False)


def ids_with_rows(data: DataConfig, managed: dict[str, Tensor]) -> dict[str, ListedIds]:
    """Returns the rules that list ids, by table.

    Args:
        data: The data.
        managed: The id of each row of every table with managed ids, `[R]`.
    """
    found = {}
    for table, (name, *_) in data.features_of_tables().items():
        rule = id_rule(name, data.sparse[name])
        if isinstance(rule, Managed):
            rule.ids_of_rows = managed[table].numpy()
        if rule.lists_ids:
            found[table] = ListedIds(rule)
    return found
