"""How well a model predicts a split, before its tables are quantized and after."""

from collections.abc import Iterable

import torch
from tabulate import tabulate
from torch import Tensor, nn

from apps.export.reference import READ_ROWS, Rows, plain_answers
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, process_group
from trainer.data.batch import Batch
from trainer.metrics.evaluation import Metrics, predictions_of_items
from trainer.metrics.retrieval import ItemVectors
from trainer.models.base import Outputs
from trainer.models.outputs import ModelOutput, by_name, model_outputs
from trainer.training.evaluate import open_catalogue
from trainer.training.item_vectors import item_vectors

Quality = dict[str, float]


@torch.inference_mode()
def measure(model: nn.Module, config: Config, rows: Iterable[Rows]) -> Quality:
    """Returns the metrics of a model with plain tables, as an evaluation finds them.

    Args:
        model: The model.
        config: Names the metrics.
        rows: The rows of the split.
    """
    served = _Served(model, model_outputs(config))
    with process_group(config.train.collective_timeout_seconds) as context:
        metrics = Metrics(config, context.device, _item_vectors(served, config, context))
        for part in rows:
            metrics.update(served(part.batch)[1])
        return metrics.compute(context)


class _Served(nn.Module):
    """A model with plain tables, to be called as one with its loss is."""

    def __init__(self, model: nn.Module, outputs: list[ModelOutput]) -> None:
        super().__init__()
        self._model, self._outputs = model, outputs

    def forward(self, batch: Batch) -> tuple[Tensor, Outputs]:
        """Returns no loss, and the predictions."""
        loss, predictions = torch.zeros(()), by_name(self._outputs, plain_answers(self._model, batch))
        return loss, Outputs(loss, predictions, batch.labels, batch.weights, batch.groups)


def _item_vectors(model: nn.Module, config: Config, context: DistributedContext) -> dict[str, ItemVectors] | None:
    """Returns the vectors of the catalogue's items, if metrics rank them."""
    names = list(dict.fromkeys(predictions_of_items(config)))
    catalogue = open_catalogue(config, context) if names else None
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
