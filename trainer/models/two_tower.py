"""Two towers for retrieval: a vector of the query and a vector of the item, compared by their inner product.

Neither tower sees features of the other side, so vectors of items can be computed before any query (Covington et
al., RecSys 2016; Yi et al., RecSys 2019).
"""

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs, Predictions
from trainer.models.hidden_layers import tower
from trainer.models.pooled import PooledModel
from trainer.models.vectors import vector_pairs


class TwoTowers(nn.Module):
    """A tower over the query's features and one over the item's.

    Args:
        inputs: The inputs of the model's builder.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, widths = inputs.config, feature_widths(inputs)
        self._predictions, self._config = inputs.predictions, config
        self._widths = [*widths.values()]
        self._of_item = [name in config.item_features for name in widths]
        self.query, self.item = (
            tower(
                inputs,
                sum(width for width, of_item in zip(self._widths, self._of_item, strict=True) if of_item is side),
                config.tower_layers,
                config.vector_dim,
            )
            for side in (False, True)
        )

    def forward(self, vector: Tensor) -> Predictions:
        """Returns the vectors of query and item, `[B, 2, D]`, for features `[B, W]`, as every prediction."""
        features = [*zip(vector.split(self._widths, dim=1), self._of_item, strict=True)]
        query, item = (
            part(torch.cat([feature for feature, of_item in features if of_item is side], dim=1))
            for part, side in ((self.query, False), (self.item, True))
        )
        return dict.fromkeys(self._predictions, vector_pairs(query, item, self._config))


def feature_widths(inputs: ModelInputs) -> dict[str, int]:
    """Returns the width of each feature in the vector of a sample, in order."""
    of_tables = {
        feature: table.embedding_dim
        for table in inputs.tables.embedding_bag_configs()
        for feature in table.feature_names
    }
    of_dense = dict.fromkeys(inputs.dense_names, 1) | {**inputs.dense_vectors}
    return of_dense | {name: of_tables[name] for name in inputs.sparse_features}


def two_tower(inputs: ModelInputs) -> nn.Module:
    """Builds the two towers."""
    return PooledModel(inputs, TwoTowers(inputs))
