"""Hidden layers, which the networks of all models have alike: a linear layer, ReLU, and dropout as `[model]` has it."""

import torch
from torch import nn
from torchrec.modules.mlp import MLP, Perceptron

from trainer.models.base import ModelInputs


def hidden_layers(inputs: ModelInputs, width: int, layers: list[int]) -> nn.Module:
    """Returns hidden layers: `[..., width]` to `[..., layers[-1]]`."""
    return completed(MLP(width, layers, device=inputs.device), inputs)


def tower(inputs: ModelInputs, width: int, layers: list[int], outputs: int) -> nn.Module:
    """Returns hidden layers, then a linear layer: `[..., width]` to `[..., outputs]`."""
    return completed(MLP(width, [*layers, outputs], activation_on_last=False, device=inputs.device), inputs)


def completed(network: nn.Module, inputs: ModelInputs) -> nn.Module:
    """Adds to the hidden layers of a network what `[model]` asks for beyond ReLU, and returns the network."""
    for layer in [module for module in network.modules() if isinstance(module, Perceptron)]:
        if layer._activation_fn is torch.relu and inputs.config.dropout:
            layer._activation_fn = nn.Sequential(nn.ReLU(), inputs.dropout())
    return network
