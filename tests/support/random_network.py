"""A network whose weights are all drawn at random, those that training begins with as zeros or ones, too."""

import torch

from trainer.config.root import Config
from trainer.models.builder import build_model


def random_network(config: Config) -> torch.nn.Module:
    """Returns the network of a configuration, the same each time."""
    built = build_model(config.data, config.model, config.predictions(), torch.device("cpu")).network
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in built.parameters():
            weight.copy_(torch.randn(weight.shape, generator=random) / 2)
    return built
