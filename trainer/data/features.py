"""Data without labels: all or some of the features."""

from collections.abc import Collection
from dataclasses import replace

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.data import CatalogueConfig, DataConfig
from trainer.data.batch import Batch
from trainer.rules.weights import pooling_weights


def features_only(config: DataConfig, names: Collection[str] | None = None) -> DataConfig:
    """Returns the columns of a data set without labels, weights and groups.

    Args:
        config: The model's training data.
        names: The features. Unset: all.
    """
    kept = {
        kind: {name: feature for name, feature in getattr(config, kind).items() if names is None or name in names}
        for kind in ("dense", "sparse")
    }
    nothing = {"labels": [], "numeric_labels": [], "groups": [], "weight": None, "catalogue": CatalogueConfig()}
    return config.model_copy(update=kept | nothing)


def with_all_features(batch: Batch, here: DataConfig, config: DataConfig) -> Batch:
    """Adds the missing features to a batch, as in a batch of items. The added features are empty.

    Args:
        batch: The batch.
        here: Its features, in the order of the configuration.
        config: All features.
    """
    if (here.dense.keys(), here.sparse.keys()) == (config.dense.keys(), config.sparse.keys()):
        return batch
    samples = len(batch.dense)
    dense = batch.dense.new_zeros(samples, len(config.dense))
    dense[:, _places(here.dense, config.dense)] = batch.dense
    lengths = batch.sparse.lengths().new_zeros(len(config.sparse), samples)
    lengths[_places(here.sparse, config.sparse)] = batch.sparse.lengths().view(-1, samples)
    weights = batch.sparse.weights_or_none()
    if weights is None and config.has_id_weights:
        weights = torch.from_numpy(pooling_weights(here.sparse, batch.sparse.lengths().numpy(), {}))
    # The values of an empty feature take no place, and other features keep their order.
    sparse = KeyedJaggedTensor(
        keys=[*config.sparse],
        values=batch.sparse.values(),
        weights=weights,
        lengths=lengths.flatten(),
        stride=samples,
    )
    return replace(batch, dense=dense, sparse=sparse)


def _places(names: Collection[str], everything: Collection[str]) -> torch.Tensor:
    places = {name: place for place, name in enumerate(everything)}
    return torch.tensor([places[name] for name in names], dtype=torch.int64)
