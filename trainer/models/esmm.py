"""ESMM, the entire-space multi-task model of clicks and conversions (Ma et al., arXiv:1804.07931)."""

from torch import Tensor, nn
from torch.nn import functional

from trainer.models.base import ModelInputs, Predictions
from trainer.models.hidden_layers import tower
from trainer.models.pooled import PooledModel, vector_width


class EntireSpace(nn.Module):
    """Logarithms of probabilities: ctr of a click, cvr of a conversion after one, ctcvr of both.

    The conversion rate is learned from all samples through the product `ctcvr = ctr * cvr`: the model is not only used
    for clicked samples.
    """

    def __init__(self, inputs: ModelInputs) -> None:
        super().__init__()
        self._predictions = inputs.predictions
        width, layers = vector_width(inputs), inputs.config.tower_layers
        self.click = tower(inputs, width, layers, 1)
        self.conversion = tower(inputs, width, layers, 1)

    def forward(self, vector: Tensor) -> Predictions:
        """Returns ctr, cvr and ctcvr, as far as they are asked for, `[B]` each."""
        # In float32: near a probability of 1, bfloat16 would round its logarithm to 0.
        click, conversion = (
            functional.logsigmoid(part(vector).squeeze(1).float()) for part in (self.click, self.conversion)
        )
        predictions = {"ctr": click, "cvr": conversion, "ctcvr": click + conversion}
        return {name: predictions[name] for name in self._predictions}


def esmm(inputs: ModelInputs) -> nn.Module:
    """Builds ESMM."""
    return PooledModel(inputs, EntireSpace(inputs))
