"""Two towers for retrieval: a vector of the query and a vector of the item, compared by their inner product.

Neither tower sees features of the other side, so vectors of items can be computed before any query (Covington et
al., RecSys 2016; Yi et al., RecSys 2019).
"""

from torch import Tensor, nn

from trainer.models.base import ModelInputs, Predictions
from trainer.models.hidden_layers import tower
from trainer.models.pooled import ChosenColumns, PooledModel, feature_widths
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
        of_query = [name for name in widths if name not in config.item_features]
        self._of_query, self._of_item = ChosenColumns(widths, of_query), ChosenColumns(widths, config.item_features)
        self.query, self.item = (
            tower(inputs, chosen.width, config.tower_layers, config.vector_dim)
            for chosen in (self._of_query, self._of_item)
        )

    def forward(self, vector: Tensor) -> Predictions:
        """Returns the vectors of query and item, `[B, 2, D]`, for features `[B, W]`, as every prediction."""
        query, item = self.query(self._of_query(vector)), self.item(self._of_item(vector))
        return dict.fromkeys(self._predictions, vector_pairs(query, item, self._config))


def two_tower(inputs: ModelInputs) -> nn.Module:
    """Builds the two towers."""
    return PooledModel(inputs, TwoTowers(inputs))
