"""The tasks of a model: its predictions, their losses, and the one loss that training minimizes."""

import torch
from torch import Tensor, nn

from trainer.config.tasks import TaskConfig
from trainer.core.registry import find_by_name
from trainer.data.batch import Batch
from trainer.models.base import Outputs, Predictions
from trainer.models.losses import LOSSES


class TaskLosses(nn.Module):
    """The weighted losses of all tasks, scaled so that ranks can average their gradients.

    A module of its own, as TorchRec's pipeline traces the model down to modules without tables, and a trace must not
    branch.

    Args:
        tasks: The tasks, label and prediction set.
        labels: Names of the labels, in the order of the batch.
    """

    def __init__(self, tasks: dict[str, TaskConfig], labels: list[str]) -> None:
        super().__init__()
        self._names = list(tasks)
        self._columns = [labels.index(str(task.label)) for task in tasks.values()]
        self._loss = find_by_name("model.loss", next(iter(tasks.values())).loss, LOSSES)

    def forward(self, output: Tensor | Predictions, batch: Batch) -> tuple[Tensor, Outputs]:
        """Computes the loss of the local batch, such that its mean over the ranks is that of the global batch.

        The loss of the global batch is the sum of its samples' losses, each times its weight, over the number of
        samples.
        """
        predictions = self._named(output)
        logits = torch.stack([predictions[name] for name in self._names], dim=1)
        each = self._loss(logits, batch.labels[:, self._columns])
        loss = (each * batch.weights).sum() * batch.scale
        detached = {name: prediction.detach() for name, prediction in predictions.items()}
        return loss, Outputs(loss.detach(), detached, batch.labels, batch.weights, batch.groups)

    def _named(self, output: Tensor | Predictions) -> Predictions:
        if isinstance(output, Tensor):
            output = dict(zip(self._names, output.unbind(1), strict=True))
        # bfloat16 has 8 bits, float16 11, too few for a loss
        return {name: prediction.float() for name, prediction in output.items()}


# TorchRec's DLRMTrain takes one label and no weights, and the mean over the local batch, in which a rank with a padded
# batch would count its samples more.
class ModelWithLoss(nn.Module):
    """A model and the losses of its tasks.

    Args:
        model: Gives predictions for dense features `[B, D]` and sparse features.
        losses: The losses of the tasks.
        device_type: Type of the device, such as cuda.
        autocast: Precision that the model computes in, None for that of its parameters; parameters and the loss stay
            float32.
    """

    def __init__(self, model: nn.Module, losses: TaskLosses, device_type: str, autocast: torch.dtype | None) -> None:
        super().__init__()
        self.model, self.losses = model, losses
        self._device_type, self._autocast = device_type, autocast

    def forward(self, batch: Batch) -> tuple[Tensor, Outputs]:
        """Computes the loss of the local batch and the model's outputs."""
        with torch.autocast(self._device_type, self._autocast, enabled=self._autocast is not None):
            output = self.model(batch.dense, batch.sparse)
        return self.losses(output, batch)
