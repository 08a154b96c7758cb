"""Multi-interest network with dynamic routing (Li et al., arXiv:1904.08030): several vectors of a user, to find items.

Legend: `B` samples, `L` items, `D` columns, `K` interests.
"""

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.models.base import ModelInputs, Predictions
from trainer.models.hidden_layers import tower
from trainer.models.pooled import vector_width
from trainer.models.sequence_model import SequenceModel, at_most_one, in_groups, sequence_dimension, within
from trainer.models.vectors import queries_and_item


class Capsules(nn.Module):
    """The interests of a history, each a sum of its items by weights that are found in rounds of routing.

    In the paper the first logits of routing are drawn for each user. Here they are drawn once, for each place and
    interest, so that a sample has the same interests at any time and on any rank.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, dimension = inputs.config, sequence_dimension(inputs)
        self._rounds = config.routing_rounds
        self.mapping = nn.Linear(dimension, dimension, bias=False, device=inputs.device)
        length = inputs.sequence_features[str(config.history)]
        logits = np.random.default_rng(0).standard_normal((length, config.interests)).astype(np.float32)
        self.register_buffer("logits", torch.from_numpy(logits).to(inputs.device), persistent=False)
        # A history of n items has log2(n) interests, rounded down, but one at least.
        least = [0, *(2**number for number in range(2, config.interests + 1))]
        self.register_buffer("least", torch.tensor(least, device=inputs.device), persistent=False)

    def forward(self, history: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Returns the interests, `[B, K D]`, where the first one stands for those that a short history lacks.

        Args:
            history: The items, `[B, L, D]`, padded at the end.
            lengths: Their numbers, `[B]`.
            target: Not used.
        """
        items = self.mapping(history)
        length = items.shape[1]
        present = within(lengths, length)[:, :, None]
        exist = lengths[:, None] >= self.least
        logits = self.logits[:length].where(exist[:, None], float("-inf"))
        for _ in range(self._rounds - 1):
            # The rounds only decide on the weights: gradients flow through the last sum alone.
            fixed = items.detach()
            logits = logits + torch.einsum("bkd,bld->blk", _squashed(_sums(logits, present, fixed)), fixed)
        interests = _squashed(_sums(logits, present, items))
        return interests.where(exist[:, :, None], interests[:, :1]).flatten(1)


def _sums(logits: Tensor, present: Tensor, items: Tensor) -> Tensor:
    """Returns the sums of the items, `[B, K, D]`, each of which is shared out among the interests."""
    return torch.einsum("blk,bld->bkd", logits.softmax(dim=2) * present, items)


def _squashed(capsules: Tensor) -> Tensor:
    """Returns the vectors with lengths from 0 to 1: of a length n, n² / (1 + n²)."""
    length = torch.linalg.vector_norm(capsules, dim=2, keepdim=True)
    return capsules * (length / (1 + length.square()))


class MultiInterest(nn.Module):
    """Hidden layers over each interest and the user's other features; an item goes with the interest closest to it.

    The paper trains on a sum of the interests by their closeness to the item, raised to a power. This is its limit for
    large powers, and the same as what finds items later: the greatest inner product with an interest.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, dimension = inputs.config, sequence_dimension(inputs)
        self._config, self._predictions = config, inputs.predictions
        self._length = inputs.sequence_features[str(config.history)]
        self.interest = Capsules(inputs)
        self.over = tower(inputs, dimension + vector_width(inputs), config.over_layers, dimension, of_items=True)

    def forward(self, vector: Tensor, target: list[JaggedTensor], history: dict[str, JaggedTensor]) -> Predictions:
        """Returns the vectors of the interests and of the item, `[B, K + 1, D]`, as every prediction.

        In training those of the closest interest and of the item, `[B, 2, D]`.
        """
        (item,) = at_most_one(target)
        interests = in_groups(self.interest, history, [item], self._length).unflatten(1, (self._config.interests, -1))
        user = vector[:, None].expand(-1, self._config.interests, -1)
        vectors = queries_and_item(self.over(torch.cat([interests, user], dim=2)), item, self._config)
        if self.training:
            closeness = (vectors[:, :-1] * vectors[:, -1:]).sum(dim=2)
            closest = closeness.argmax(dim=1)[:, None, None].expand(-1, 1, vectors.shape[2])
            vectors = torch.cat([vectors.gather(1, closest), vectors[:, -1:]], dim=1)
        return dict.fromkeys(self._predictions, vectors)


def mind(inputs: ModelInputs) -> nn.Module:
    """Builds the model."""
    return SequenceModel(inputs, network=MultiInterest(inputs))
