"""How well a model predicts a split, before its tables are quantized and after."""

from collections.abc import Iterable

import torch
from tabulate import tabulate
from torch import nn

from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.metrics.evaluation import Metrics, predictions_of_items
from trainer.models.base import Outputs
from trainer.models.outputs import by_name, model_outputs
from trainer.tools.export.reference import Rows, plain_answers

Quality = dict[str, float]


@torch.inference_mode()
def measure(model: nn.Module, config: Config, rows: Iterable[Rows]) -> Quality:
    """Returns the metrics of a model with plain tables; none of models whose metrics rank a catalogue.

    Args:
        model: The model.
        config: Names the metrics.
        rows: The rows of the split.
    """
    if predictions_of_items(config):
        return {}
    outputs = model_outputs(config)
    with process_group(config.train.collective_timeout_seconds) as context:
        metrics = Metrics(config, context.device)
        for part in rows:
            predictions = by_name(outputs, plain_answers(model, part.batch))
            batch = part.batch
            metrics.update(Outputs(torch.zeros(()), predictions, batch.labels, batch.weights, batch.groups))
        return metrics.compute(context)


def render(split: str, before: Quality, after: Quality, quantization: str) -> str:
    """Returns a table of the metrics before and after, and of their changes."""
    rows = [
        [name, f"{value:.6f}", f"{after[name]:.6f}", f"{after[name] - value:+.6f}"]
        for name, value in before.items()
        if name != "samples"
    ]
    return tabulate(rows, headers=[f"data.{split}", "float32", quantization, "change"], disable_numparse=True)
