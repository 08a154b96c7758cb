"""Table collections of a model, with plain tensors in place of TorchRec's KeyedJaggedTensor."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig, EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.sparse.jagged_tensor import KeyedTensor

from torchx_recsys.apps.export.features import Features, Ids, Sequence, Table
from trainer.config.data import DataConfig


class PlainPooledTables(nn.Module):
    """An EmbeddingBagCollection for ids in plain tensors; keeps the names of tables.

    Args:
        collection: The collection.
        poolings: The pooling of each feature. With weights of ids, the collection itself only sums.
    """

    def __init__(self, collection: EmbeddingBagCollection, poolings: Mapping[str, str]) -> None:
        super().__init__()
        self._configs: list[EmbeddingBagConfig] = collection.embedding_bag_configs()
        self._poolings = poolings
        self.embedding_bags = _made(collection.embedding_bags)

    def forward(self, features: Features) -> KeyedTensor:
        """Returns the pooled embeddings of all features."""
        if not self._configs:
            return KeyedTensor([], [], torch.empty(features.samples, 0))
        pooled = {
            feature: features[feature].pooled(self.embedding_bags[config.name], self._poolings[feature])
            for config in self._configs
            for feature in config.feature_names
        }
        widths = [embedding.shape[1] for embedding in pooled.values()]
        return KeyedTensor([*pooled], widths, torch.cat([*pooled.values()], dim=1))


class PlainSequenceTables(nn.Module):
    """An EmbeddingCollection for ids in plain tensors.

    Args:
        collection: The collection.
        lengths: The greatest length of each sequence.
        poolings: The pooling of each pooled feature.
    """

    def __init__(
        self, collection: EmbeddingCollection, lengths: Mapping[str, int], poolings: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._configs: list[EmbeddingConfig] = collection.embedding_configs()
        self._lengths, self._poolings = lengths, poolings
        self.embeddings = _made(collection.embeddings)

    def forward(self, features: Features) -> dict[str, Sequence | Tensor]:
        """Returns the sequences of all features; the pooled embeddings of those that are no sequences."""
        return {
            feature: self._of_feature(features[feature], feature, self.embeddings[config.name])
            for config in self._configs
            for feature in config.feature_names
        }

    def _of_feature(self, ids: Ids, feature: str, table: nn.Module) -> Sequence | Tensor:
        if feature in self._poolings:
            return ids.pooled(table, self._poolings[feature])
        return ids.sequence(table, self._lengths[feature])


def _made(tables: nn.ModuleDict) -> nn.ModuleDict:
    return nn.ModuleDict({name: Table(table.get_parameter("weight").data) for name, table in tables.items()})


def replace_tables(model: nn.Module, data: DataConfig) -> None:
    """Replaces TorchRec's collections in a model by plain tables.

    Args:
        model: The model, which keeps the memory of its tables.
        data: The features.
    """
    poolings = {name: data.sparse[name].pooling for name in data.pooled}
    made: dict[nn.Module, nn.Module] = {}
    for path, module in [*model.named_modules(remove_duplicate=False)]:
        if isinstance(module, EmbeddingBagCollection):
            made.setdefault(module, PlainPooledTables(module, poolings))
        elif isinstance(module, EmbeddingCollection):
            made.setdefault(module, PlainSequenceTables(module, data.sequences, poolings))
        else:
            continue
        model.set_submodule(path, made[module])
