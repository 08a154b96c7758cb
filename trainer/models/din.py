"""Deep Interest Network (Zhou et al., arXiv:1706.06978)."""

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs
from trainer.models.hidden_layers import tower
from trainer.models.sequence_model import SequenceModel, sequence_dimension, within


class TargetAttention(nn.Module):
    """The sum of a history's items, each times a weight that a small network computes from the item and the target.

    As in the paper, the weights are not a softmax: their sum is the strength of the interest. The hidden layers use
    ReLU instead of the paper's Dice, which depends on the other samples of a batch.

    For an inner product, the network computes how much a weight differs from 1, over the root of the history's length.
    Without attention this is FISM (Kabbur et al., KDD 2013), which learns from few samples.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        dimension, self._from_one = sequence_dimension(inputs), inputs.config.inner_product
        self.weights = tower(inputs, 4 * dimension, inputs.config.attention_layers, 1, of_items=True)

    def forward(self, history: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """Returns the interest in a target, `[B, D]`, from `[B, L, D]`, `[B]` and `[B, D]`."""
        targets = target[:, None].expand_as(history)
        pairs = torch.cat([history, targets, history - targets, history * targets], dim=2)
        weights = self.weights(pairs).squeeze(2)
        if self._from_one:
            weights = (1 + weights) / lengths.clamp(min=1).sqrt()[:, None]
        return torch.einsum("bl,bld->bd", weights * within(lengths, history.shape[1]), history)


def din(inputs: ModelInputs) -> nn.Module:
    """Builds DIN."""
    return SequenceModel(inputs, TargetAttention(inputs), sequence_dimension(inputs))
