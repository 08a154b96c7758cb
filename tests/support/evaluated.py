"""Metrics of given predictions, without a model."""

import torch
from torch import Tensor

from trainer.config.root import Config
from trainer.metrics.base import Metrics
from trainer.models.base import Outputs


def metrics_of(names: list[str], labels: list[str]) -> Metrics:
    """Returns the metrics of a task for each label."""
    return Metrics(
        Config.model_validate({"data": {"labels": labels}, "evaluate": {"metrics": names}}), torch.device("cpu")
    )


def outputs(predictions: dict[str, Tensor], labels: Tensor, weights: Tensor, groups: Tensor | None = None) -> Outputs:
    """Returns the outputs of a model; labels are `[B, L]`, groups `[B, G]` or none."""
    none = torch.zeros(len(weights), 0, dtype=torch.int64)
    return Outputs(torch.zeros(()), predictions, labels, weights, none if groups is None else groups)
