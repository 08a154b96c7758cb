"""The items that samples have had already, by features with such items: they are no negatives of the samples."""

from collections.abc import Callable

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.rules.registry import OwnRule, id_rule

UNIT = 32  # bits of a row; the number of the unit stands above them

Had = Callable[[Tensor], Tensor]
"""Returns which items the samples of a unit have had, `[U, M]` to `[U, N, M]`."""


def matches(wanted: Tensor, lengths: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns pairs of a sample and of the place of an equal row among sorted rows, `[P]` int64 each.

    Args:
        wanted: Rows of all samples, `[N]`.
        lengths: The number of rows of each sample, `[B]`.
        rows: The rows to find, ascending, `[M]`.
    """
    first, last = (torch.searchsorted(rows, wanted, right=right) for right in (False, True))
    number = last - first
    sample = torch.arange(len(lengths), device=wanted.device).repeat_interleave(lengths).repeat_interleave(number)
    ends = number.cumsum(0)
    within = torch.arange(len(sample), device=wanted.device) - (ends - number).repeat_interleave(number)
    return sample, first.repeat_interleave(number) + within


class HadItems:
    """Finds items in the features of `data.catalogue.negatives_not_in`, by their rows in the features' tables.

    Args:
        data: The data.

    Raises:
        InputError: The ids of a feature have a rule without a torch form.
    """

    def __init__(self, data: DataConfig) -> None:
        self._features = {name: data.sparse[name] for name in data.catalogue.negatives_not_in}
        self._rules = {name: id_rule(name, feature) for name, feature in self._features.items()}
        self._arrays: dict[str, dict[str, Tensor]] = {}
        for name, rule in self._rules.items():
            if isinstance(rule, OwnRule) and rule.is_carried:
                raise InputError(
                    f"data.catalogue.negatives_not_in names '{name}', but data.sparse.{name}.ids is "
                    f"'{self._features[name].ids}', which has no torch_rows_of; write it, or use another feature"
                )

    def of(self, sparse: KeyedJaggedTensor, are_rows: bool) -> Had:
        """Returns a function from items to whether the samples of a batch have had them.

        Args:
            sparse: The features of the batch.
            are_rows: Whether items will be given by their rows in the table of the features, else by their ids.
        """
        return lambda items: self._had(sparse, items, are_rows)

    @torch.no_grad()
    def _had(self, sparse: KeyedJaggedTensor, items: Tensor, are_rows: bool) -> Tensor:
        units, number = items.shape
        samples = sparse.stride()
        found = torch.zeros(samples, number, dtype=torch.bool, device=items.device)
        of_items = torch.arange(units, device=items.device)[:, None] << UNIT
        unit = torch.arange(samples, device=items.device) // (samples // units) << UNIT
        for name in self._features:
            rows, order = ((items if are_rows else self._rows_of(name, items)) + of_items).flatten().sort(stable=True)
            one = sparse[name]
            lengths = one.lengths().long()
            sample, place = matches(one.values().long() + unit.repeat_interleave(lengths), lengths, rows)
            found[sample, order[place] % number] = True
        return found.view(units, -1, number)

    def _rows_of(self, name: str, ids: Tensor) -> Tensor:
        """Returns the rows of items in the table of a feature, in the shape of `ids`."""
        rule, device = self._rules[name], ids.device
        if name not in self._arrays:
            self._arrays[name] = {key: torch.from_numpy(one).to(device) for key, one in rule.arrays().items()}
        rows = rule.torch_rows_of(ids.flatten() + self._features[name].offset, self._arrays[name], unsigned=False)
        return rows.view(ids.shape)
