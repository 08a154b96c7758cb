"""The output columns that predictions are turned into: probabilities, values, scores and vectors."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from trainer.config.root import Config
from trainer.config.tasks import TaskConfig
from trainer.models.base import Predictions

OutputKind = Literal["probability", "probabilities", "value", "score", "vector"]


@dataclass(frozen=True)
class ModelOutput:
    """A column of outputs.

    Attributes:
        name: Its name, `PREDICTION_KIND`; of vectors `PREDICTION_query` and `PREDICTION_item`.
        kind: A probability `[B]`, one for each class `[B, C]`, a value `[B]`, a score that only orders samples `[B]`,
            or a vector `[B, D]`; several ones of a query, `[B, Q, D]`.
        prediction: Name of the model's prediction.
        columns: Columns of the prediction, where a model returns all of them as one tensor.
        compute: Returns the column from the prediction.
        mean: What is added to a prediction that is a value or its logarithm, after it is multiplied.
        std: What it is multiplied by.
    """

    name: str
    kind: OutputKind
    prediction: str
    columns: int
    compute: Callable[[Tensor], Tensor]
    mean: float = 0.0
    std: float = 1.0


def model_outputs(config: Config) -> list[ModelOutput]:
    """Returns the outputs of a model in the order of its tasks, each once."""
    columns = config.predictions()
    found = [output for task in config.named_tasks().values() for output in outputs_of(task, columns)]
    return list({output.name: output for output in found}.values())


def compute_outputs(outputs: list[ModelOutput], predictions: Predictions | Tensor) -> dict[str, Tensor]:
    """Returns the outputs by name, float32, from what a model returns: by name, or `[B, T]` in order."""
    return outputs_by_name(outputs, by_name(outputs, predictions))


def outputs_by_name(outputs: list[ModelOutput], named: Predictions) -> dict[str, Tensor]:
    """Returns the outputs by name from the result of `by_name`, which has values in their unit already."""
    return {output.name: output.compute(named[output.prediction]) for output in outputs}


def by_name(outputs: list[ModelOutput], predictions: Predictions | Tensor) -> Predictions:
    """Returns a model's predictions by name, float32: bfloat16's 8 bits and float16's 11 are too few for a loss."""
    if isinstance(predictions, Tensor):
        columns = {output.prediction: output.columns for output in outputs}
        widths = [*columns.values()]
        # A user's own model may know no pairs: it returns one column each, which the loss of a pair refuses.
        size = widths if predictions.shape[1] == sum(widths) else 1
        parts = predictions.split(size, dim=1) if predictions.shape[1] > 1 else [predictions]
        predictions = {name: part.squeeze(1) for name, part in zip(columns, parts, strict=True)}
    named = {name: one.float() if one.is_floating_point() else one for name, one in predictions.items()}
    scaled = {output.prediction: output for output in outputs if (output.mean, output.std) != (0.0, 1.0)}
    return named | {name: named[name] * one.std + one.mean for name, one in scaled.items()}


def outputs_of(task: TaskConfig, columns: dict[str, int]) -> list[ModelOutput]:
    """Returns the outputs of a task: one, or of vectors those of the query and of the item.

    Args:
        task: The task.
        columns: The columns of each prediction, as in `Config.predictions`.
    """
    prediction = str(task.prediction)
    width = columns[prediction]
    if task.output == "vectors":
        sides = {"query": _vectors_of_query, "item": _vector_of_item}
        return [ModelOutput(f"{prediction}_{side}", "vector", prediction, width, of) for side, of in sides.items()]
    kind, compute = _kind_of(task)
    return [ModelOutput(f"{prediction}_{kind}", kind, prediction, width, compute, task.mean, task.std)]


def _kind_of(task: TaskConfig) -> tuple[OutputKind, Callable[[Tensor], Tensor]]:
    if task.loss == "bpr":
        return "score", _unchanged
    if task.loss == "softmax":
        return "probabilities", partial(torch.softmax, dim=1)
    if task.output in ("value", "log_value"):
        return "value", torch.exp if task.output == "log_value" else _unchanged
    return "probability", torch.exp if task.output == "log_probability" else _probability


def _unchanged(prediction: Tensor) -> Tensor:
    return prediction


def _vectors_of_query(vectors: Tensor) -> Tensor:
    """Returns a query's vector `[B, D]`, or its several ones `[B, Q, D]`."""
    return vectors[:, 0] if vectors.shape[1] == 2 else vectors[:, :-1]


def _vector_of_item(vectors: Tensor) -> Tensor:
    return vectors[:, -1]


def _probability(logits: Tensor) -> Tensor:
    """Returns the sigmoid of logits `[B]`, or of the difference of the logits of two classes `[B, 2]`."""
    return torch.sigmoid(logits[:, 1] - logits[:, 0] if logits.dim() == 2 else logits)
