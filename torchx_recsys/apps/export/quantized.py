"""Quantizes tables to int8 or int4, and measures the model before and after."""

from collections.abc import Iterable

import torch
from tabulate import tabulate
from torch import Tensor, nn

from torchx_recsys.apps.export.features import Table
from torchx_recsys.apps.export.reference import READ_ROWS, SplitRows, plain_answers
from trainer.batches.batch import Batch
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, process_group
from trainer.data.columns import RecordedTypes
from trainer.metrics.evaluation import Metrics, predictions_of_items
from trainer.metrics.retrieval import ItemVectors
from trainer.models.base import BatchOutputs
from trainer.models.outputs import ModelOutput, by_name, model_outputs
from trainer.training.evaluate import open_catalogue
from trainer.training.item_vectors import item_vectors

BITS = {"int8": 8, "int4": 4}
BLOCK_ROWS = 65_536  # rows quantized at once, so that little memory is needed besides the tables


Quality = dict[str, float]


class QuantizedTable(nn.Module):
    """A table with a scale and a bias for each row: a value is `scale * q + bias`.

    Args:
        weight: The table, `[R, D]`.
        bits: Bits of `q`: 8, or 4 with two values in a byte.
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
            values = values.int()  # the ONNX converter would shift signed bytes
            values = torch.stack([values & 15, values >> 4], dim=-1).flatten(-2)[..., : self._columns]
        return values.float() * self.scales[rows].float()[..., None] + self.biases[rows].float()[..., None]


def _quantized(weight: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the values, scales and biases of rows; scales and biases are float16, as in FBGEMM."""
    low, high = weight.aminmax(dim=1)
    biases, levels = low.half(), 2**bits - 1
    scales = ((high - biases.float()) / levels).half()
    # Uses the stored scale and bias, so that the values compensate their rounding.
    steps = (weight - biases.float()[:, None]) / scales.float().where(scales != 0, 1.0)[:, None]
    values = steps.round().clamp(0, levels).to(torch.uint8)
    if bits == 4:
        values = nn.functional.pad(values, (0, values.shape[1] % 2))
        values = values[:, ::2] | values[:, 1::2] << 4
    return values, scales, biases


def quantize_tables(model: nn.Module, quantization: str) -> None:
    """Quantizes the tables of a model one after the other, and frees each float table."""
    for path, module in [*model.named_modules()]:
        if isinstance(module, Table):
            model.set_submodule(path, QuantizedTable(module.weight.data, BITS[quantization]))


@torch.inference_mode()
def measure(model: nn.Module, config: Config, types: RecordedTypes, rows: Iterable[SplitRows]) -> Quality:
    """Returns the metrics that an evaluation computes, for a model with plain tables.

    Args:
        model: The model.
        config: Names the metrics.
        types: The types of the columns that the model was trained on.
        rows: The rows of the split.
    """
    served = _Served(model, model_outputs(config))
    with process_group(config.train.collective_timeout_seconds) as context:
        metrics = Metrics(config, context.device, _item_vectors(served, config, types, context))
        for part in rows:
            metrics.update(served(part.batch)[1])
        return metrics.compute(context)


class _Served(nn.Module):
    """Gives a model with plain tables the interface of a model with its loss."""

    def __init__(self, model: nn.Module, outputs: list[ModelOutput]) -> None:
        super().__init__()
        self._model, self._outputs = model, outputs

    def forward(self, batch: Batch) -> tuple[Tensor, BatchOutputs]:
        """Returns a loss of 0, and the predictions."""
        loss, predictions = torch.zeros(()), by_name(self._outputs, plain_answers(self._model, batch))
        return loss, BatchOutputs(loss, predictions, batch.labels, batch.weights, batch.groups, batch.sparse)


def _item_vectors(
    model: nn.Module, config: Config, types: RecordedTypes, context: DistributedContext
) -> dict[str, ItemVectors] | None:
    """Returns the vectors of the catalogue's items, if metrics rank them."""
    names = list(dict.fromkeys(predictions_of_items(config)))
    catalogue = open_catalogue(config, context, types) if names else None
    if catalogue is None:
        return None
    return item_vectors(model, catalogue, config.data, names, READ_ROWS, context, lambda: False)


def render(split: str, before: Quality, after: Quality, quantization: str) -> str:
    """Returns a table of the metrics before and after, and of their changes."""
    rows = [
        [name, f"{value:.6f}", f"{after[name]:.6f}", f"{after[name] - value:+.6f}"]
        for name, value in before.items()
        if name != "samples"
    ]
    return tabulate(rows, headers=[f"data.{split}", "float32", quantization, "change"], disable_numparse=True)
