"""A weighted sum of a user's latest items: how much each counts follows from its age alone, in places and in seconds.

Legend: `B` samples, `L` items, `D` columns.
"""

import torch
from torch import Tensor, nn

from trainer.models.base import ModelInputs
from trainer.models.sequence_model import (
    TIME_BUCKETS,
    SequenceModel,
    looked_up,
    sequence_dimension,
    time_buckets,
    within,
)


class LatestItems(nn.Module):
    """The sum of the items' embeddings by weights of their ages, and by weights of ages and columns."""

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        config, device = inputs.config, inputs.device
        length = inputs.sequence_features[config.history] if config.history else 1
        columns = sequence_dimension(inputs)
        self.dropout = inputs.dropout()
        # An old item begins with little weight: taught from equal weights, a model learns what is popular first.
        self.by_place = nn.Parameter(torch.linspace(0, -1, length, device=device))
        self.columns_by_place = nn.Parameter(torch.zeros(length, columns, device=device))
        self.by_time = self.columns_by_time = None
        if config.target_time:
            self.by_time = nn.Parameter(torch.linspace(0, -4, TIME_BUCKETS, device=device))
            self.columns_by_time = nn.Parameter(torch.zeros(TIME_BUCKETS, columns, device=device))

    def forward(self, history: Tensor, lengths: Tensor, target: Tensor, *times: Tensor) -> Tensor:
        """Returns the sum, `[B, D]`; zeros where there is no item.

        Args:
            history: The items, `[B, L, D]`, padded at the end.
            lengths: Their numbers, `[B]`.
            target: Not used.
            times: The times of the items, `[B, L]`, and of the target, `[B]`, if there are any.
        """
        places = torch.arange(history.shape[1], device=history.device)
        ages = (lengths.long()[:, None] - 1 - places).clamp(min=0)
        weights, columns = looked_up(self.by_place, ages), 1 + looked_up(self.columns_by_place, ages)
        if self.by_time is not None and self.columns_by_time is not None and times:
            # One second more, so that the first bucket is that of 0 seconds.
            buckets = time_buckets((times[1][:, None] - times[0]).clamp(min=0) + 1)
            weights = weights + looked_up(self.by_time, buckets)
            columns = columns + looked_up(self.columns_by_time, buckets)
        weights = weights.exp() * within(lengths, history.shape[1])
        return (weights[:, :, None] * columns * self.dropout(history)).sum(1)


def recency(inputs: ModelInputs) -> nn.Module:
    """Builds the model."""
    return SequenceModel(inputs, LatestItems(inputs), sequence_dimension(inputs))
