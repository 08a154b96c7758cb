"""The items that queries have had already, by the features of data.catalogue.exclude."""

import numpy as np
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.data import DataConfig
from trainer.core.errors import InputError
from trainer.models.had_items import matches
from trainer.rules.base import RefusedId
from trainer.rules.registry import id_rule


class SeenItems:
    """Finds the items that samples have in some features, among those of the catalogue.

    An item is found by its row in the table of a feature, so items that share a row are found together.

    Args:
        ids: Ids of the catalogue's items, `[I]` int64.
        data: The data, which names the features.
        device: Device of the samples.

    Raises:
        InputError: An item has no row in the table of a feature.
    """

    def __init__(self, ids: np.ndarray, data: DataConfig, device: torch.device) -> None:
        self._rows = {
            name: torch.from_numpy(_rows_of(ids, name, data).astype(np.int64)).to(device).sort(stable=True)
            for name in data.catalogue.exclude
        }

    def of(self, sparse: KeyedJaggedTensor) -> Tensor:
        """Returns pairs of a sample and the place of an item in the catalogue, `[N, 2]` int64."""
        pairs = [torch.empty(0, 2, dtype=torch.int64, device=sparse.device())]
        for name, (rows, places) in self._rows.items():
            sample, found = matches(sparse[name].values().long(), sparse[name].lengths(), rows)
            pairs.append(torch.stack([sample, places[found]], dim=1))
        return torch.cat(pairs)


def _rows_of(ids: np.ndarray, name: str, data: DataConfig) -> np.ndarray:
    """Returns the row of each item in the table of a feature."""
    feature = data.sparse[name]
    ids = ids + np.int64(feature.offset)
    try:
        return id_rule(name, feature).rows_of(ids)
    except RefusedId as refused:
        raise InputError(
            f"data.catalogue.exclude names '{name}', but the item {ids[refused.place]} of data.catalogue.items "
            f"{refused.reason}"
        ) from refused
