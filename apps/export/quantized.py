"""Tables in 8 or 4 bits a value."""

import torch
from torch import Tensor, nn

from apps.export.features import Table
from apps.export.forms import Quantization

BITS = {"int8": 8, "int4": 4}
BLOCK_ROWS = 65_536  # of a table are quantized at once, so that it takes little memory beside the tables


class QuantizedTable(nn.Module):
    """A table whose rows have a scale and a bias each: a value is `scale * q + bias`.

    Args:
        weight: The table, `[R, D]`.
        bits: Bits of `q`: 8, or 4, of which a byte holds two.
    """

    def __init__(self, weight: Tensor, bits: int) -> None:
        super().__init__()
        self._bits, self._columns = bits, weight.shape[1]
        blocks = [_quantized(block.float(), bits) for block in weight.split(BLOCK_ROWS)]
        values, scales, biases = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        self.values, self.scales, self.biases = nn.Buffer(values), nn.Buffer(scales), nn.Buffer(biases)

    def forward(self, rows: Tensor) -> Tensor:
        """Returns the embeddings of rows, `[...]` int64 to `[..., D]` float32."""
        values = self.values[rows]
        if self._bits == 4:
            values = values.int()  # as the converter to ONNX shifts bytes into bytes with a sign
            values = torch.stack([values & 15, values >> 4], dim=-1).flatten(-2)[..., : self._columns]
        return values.float() * self.scales[rows].float()[..., None] + self.biases[rows].float()[..., None]


def _quantized(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the values, scales and biases of rows; as in FBGEMM both of these are float16."""
    low, high = weight.aminmax(dim=1)
    biases, levels = low.half(), 2**bits - 1
    scales = ((high - biases.float()) / levels).half()
    # By the scale and the bias as they are stored, so that their rounding is made up for.
    steps = (weight - biases.float()[:, None]) / scales.float().where(scales != 0, 1.0)[:, None]
    values = steps.round().clamp(0, levels).to(torch.uint8)
    if bits == 4:
        values = nn.functional.pad(values, (0, values.shape[1] % 2))
        values = values[:, ::2] | values[:, 1::2] << 4
    return values, scales, biases


def quantize_tables(model: nn.Module, quantization: Quantization) -> None:
    """Quantizes the tables of a model, one after the other, each of which is let go."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, Table):
            model.set_submodule(path, QuantizedTable(module.weight.data, BITS[quantization]))
