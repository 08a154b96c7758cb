"""DeepFM (Guo et al., arXiv:1703.04247) and Wide & Deep (Cheng et al., arXiv:1606.07792)."""

from torch import Tensor, nn
from torch.nn import functional

from trainer.models.base import ModelInputs
from trainer.models.hidden_layers import tower
from trainer.models.pooled import PooledModel, columns_that_share, equal_dimension, vector_width


class WideAndDeep(nn.Module):
    """Logits are a linear function of a sample's vector plus the output of hidden layers.

    The wide part has a weight for each id in the paper. Here it is linear in the pooled embeddings, so that the weight
    of an id is the product of its embedding with a vector: it can take any value, and needs no second set of tables.
    Its crossed features are columns of the data set.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        width, columns = vector_width(inputs), sum(inputs.columns)
        self.wide = nn.Linear(width, columns, device=inputs.device)
        self.deep = tower(inputs, width, inputs.config.over_layers, columns)

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        return self.wide(vector) + self.deep(vector)


# TorchRec's FactorizationMachine multiplies single values instead of vectors: it sums over the columns, too.
class SecondOrder(nn.Module):
    """The products of all pairs of a sample's features, by a factorization machine (Rendle, ICDM 2010).

    A sparse feature's factor is its pooled embedding; a dense feature's factor is its value times a learned vector.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self._dense, self._dimension = inputs.dense_features, equal_dimension(inputs)
        self.dense_factors = (
            nn.Linear(self._dense, self._dimension, bias=False, device=inputs.device) if self._dense else None
        )

    def forward(self, vector: Tensor) -> Tensor:
        """Returns the sum over all pairs of features of the inner products of their factors, `[B, 1]`."""
        dense, embeddings = vector[:, : self._dense], vector[:, self._dense :].unflatten(1, (-1, self._dimension))
        total, squares = embeddings.sum(dim=1), embeddings.square().sum(dim=1)
        if self.dense_factors is not None:
            total = total + self.dense_factors(dense)
            squares = squares + functional.linear(dense.square(), self.dense_factors.weight.square())
        # The sum over pairs is half of the square of the sum less the sum of the squares.
        return 0.5 * (total.square() - squares).sum(dim=1, keepdim=True)


class DeepFactorizationMachine(nn.Module):
    """Wide & Deep plus the second-order term, which all predictions share."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self.wide_and_deep, self.second = WideAndDeep(inputs), SecondOrder(inputs)
        self.register_buffer("shares", columns_that_share(inputs), persistent=False)

    def forward(self, vector: Tensor) -> Tensor:
        """Returns logits `[B, T]`."""
        return self.wide_and_deep(vector) + self.second(vector) * self.shares


def wide_deep(inputs: ModelInputs) -> nn.Module:
    """Builds Wide & Deep."""
    return PooledModel(inputs, WideAndDeep(inputs))


def deepfm(inputs: ModelInputs) -> nn.Module:
    """Builds DeepFM."""
    return PooledModel(inputs, DeepFactorizationMachine(inputs))
