"""Gates: two layers over what is known of a sample, whose outputs multiply the columns of another vector.

Their hidden layer keeps ReLU, and takes neither dropout nor normalization: a gate is no hidden layer of a tower.
"""

from torch import Tensor, nn

from trainer.models.base import ModelInputs


def gate_layers(inputs: ModelInputs, width: int, outputs: int) -> nn.Sequential:
    """Returns two layers, `[B, width]` to `[B, outputs]`, with a hidden layer of `model.gates.width` columns."""
    hidden, device = inputs.config.gates.width, inputs.device
    return nn.Sequential(nn.Linear(width, hidden, device=device), nn.ReLU(), nn.Linear(hidden, outputs, device=device))


class ScalingGate(nn.Module):
    """Factors between 0 and 2: a column can be switched off, left as it is or doubled."""

    def __init__(self, inputs: ModelInputs, width: int, outputs: int) -> None:
        super().__init__()
        self.layers = gate_layers(inputs, width, outputs)

    def forward(self, vector: Tensor) -> Tensor:
        """Returns the factors `[B, outputs]` for vectors `[B, width]`."""
        return 2 * self.layers(vector).sigmoid()
