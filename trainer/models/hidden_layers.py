"""Hidden layers, which the networks of all models have alike: a linear layer, then what `[model]` asks for."""

import torch
from torch import nn
from torchrec.modules.mlp import MLP, Perceptron

from trainer.models.base import ModelInputs
from trainer.models.normalization import BatchNorm, LayerNorm
from trainer.models.recompute import Recomputable

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU, "leaky_relu": nn.LeakyReLU}


class HiddenLayer(Recomputable, Perceptron):
    """A hidden layer that can be computed again in backward."""


class HiddenLayers(Recomputable, MLP):
    """A network with hidden layers that can be computed again in backward."""


def hidden_layers(inputs: ModelInputs, width: int, layers: list[int]) -> nn.Module:
    """Returns hidden layers: `[B, width]` to `[B, layers[-1]]`."""
    return completed(MLP(width, layers, device=inputs.device), inputs)


def tower(inputs: ModelInputs, width: int, layers: list[int], outputs: int, of_items: bool = False) -> nn.Module:
    """Returns hidden layers, then a linear layer: `[B, width]` to `[B, outputs]`.

    Args:
        inputs: The inputs of the model's builder.
        width: Number of columns of the inputs.
        layers: Number of columns of each hidden layer.
        outputs: Number of columns of the outputs.
        of_items: Whether the inputs are the items of padded sequences, `[B, L, width]`.
    """
    network = MLP(width, [*layers, outputs], activation_on_last=False, device=inputs.device)
    return completed(network, inputs, of_items)


def completed(network: nn.Module, inputs: ModelInputs, of_items: bool = False) -> nn.Module:
    """Puts what `[model]` asks for behind the linear layer of each hidden layer of a network, and returns the network.

    TorchRec's layer has an activation only, so this is in its place. Without anything else it stays what it was.
    TorchRec also makes the networks, those of DLRM in its own modules, so they become `Recomputable` in their places.
    """
    for layer in [module for module in network.modules() if isinstance(module, Perceptron)]:
        if layer._activation_fn is not torch.relu:  # the last layer of a tower
            continue
        layer.__class__ = HiddenLayer
        kind = "none" if of_items else inputs.config.normalization
        parts = [_normalization(layer, kind, inputs), activation(inputs), inputs.dropout()]
        used = [part for part in parts if not isinstance(part, nn.Identity)]
        if len(used) > 1 or inputs.config.activation != "relu":
            layer._activation_fn = nn.Sequential(*used)
    for part in [module for module in network.modules() if isinstance(module, MLP)]:
        if any(isinstance(layer, HiddenLayer) for layer in part.modules()):
            part.__class__ = HiddenLayers
    return network


def activation(inputs: ModelInputs) -> nn.Module:
    """Returns the activation of hidden layers."""
    return ACTIVATIONS[inputs.config.activation]()


def _normalization(layer: Perceptron, kind: str, inputs: ModelInputs) -> nn.Module:
    if kind == "layer":
        return LayerNorm(layer._out_size, device=inputs.device)
    if kind == "batch":
        # The mean takes a bias away: its gradient is what rounding leaves of 0, which Adam makes as large as any.
        layer._linear.register_parameter("bias", None)
        return BatchNorm(layer._out_size, inputs.samples, inputs.device)
    return nn.Identity()
