"""A user's own model with predictions of every kind, own losses, and the same tasks trained by hand in float64."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import reference_losses as reference
import torch
from plain_model import plain_model
from torch import Tensor, nn
from torch.nn.functional import logsigmoid
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.config.root import Config
from trainer.data.epoch_order import Lanes

WIDTH = 4  # of the vectors


class Heads(nn.Module):
    """Linear heads over the pooled embeddings."""

    def __init__(self, inputs):
        super().__init__()
        self.tables, self.features = inputs.tables, inputs.sparse_features
        width = sum(table.embedding_dim * len(table.feature_names) for table in inputs.tables.embedding_bag_configs())
        self.heads = nn.Linear(width, 7 + 2 * WIDTH, device=inputs.device)

    def forward(self, dense, sparse):
        pooled = self.tables(sparse)
        embeddings = torch.cat([pooled[feature] for feature in self.features], dim=1)
        outputs = self.heads(embeddings.to(self.heads.weight.dtype))  # unsharded tables always return float32
        return {
            "score": outputs[:, 0],
            "product": logsigmoid(outputs[:, 0]) + logsigmoid(outputs[:, 1]),
            "classes": outputs[:, 2:5],
            "pair": outputs[:, 5:7],
            "vectors": outputs[:, 7:].unflatten(1, (2, WIDTH)),
        }


class NoTables(nn.Module):
    """A linear model of the dense features, without the tables that it is given."""

    def __init__(self, inputs):
        super().__init__()
        self.head = nn.Linear(inputs.dense_features, len(inputs.predictions), device=inputs.device)

    def forward(self, dense, sparse):
        return self.head(dense)


class IdleTables(NoTables):
    """The same, which keeps the tables and does not look anything up."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.tables = inputs.tables


class Scale(nn.Module):
    """A scale that is read from a tensor, which takes values."""

    def forward(self, scaled):
        return scaled * (1.0 if scaled.isfinite().all().item() else 0.0)


class NeedsValues(Heads):
    """Linear heads of scaled features."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.scale = Scale()

    def forward(self, dense, sparse):
        return {name: self.scale(output) for name, output in super().forward(dense, sparse).items()}


def cubic(prediction: Tensor, label: Tensor) -> Tensor:
    """A loss of a task of one's own, `[B]`."""
    return (prediction - label).abs() ** 3


def failing(prediction: Tensor, label: Tensor) -> Tensor:
    """A loss with a bug."""
    raise ZeroDivisionError("the sum of no weights")


def mean(prediction: Tensor, label: Tensor) -> Tensor:
    """A loss that forgets that weights and means are not its business."""
    return (prediction - label).abs().mean()


Reference = Callable[..., Tensor]
TASKS: dict[str, tuple[dict, Reference]] = {
    "smoothed": ({"label": "label", "prediction": "score", "label_smoothing": 0.1}, reference.binary),
    "focal": ({"label": "label", "prediction": "score", "loss": "focal", "weight": 0.5}, reference.focal),
    "product": (
        {"label": "buy", "output": "log_probability", "where": {"column": "label", "outside": 0.25}},
        reference.log_probability,
    ),
    "classes": ({"label": "kind", "loss": "softmax", "where": {"column": "buy"}}, reference.softmax),
    "seconds": ({"prediction": "score", "loss": "huber", "delta": 0.7}, reference.huber),
    "own": ({"label": "label", "prediction": "score", "loss": "task_models:cubic"}, cubic),
    "pair": ({"label": "label", "loss": "jrc", "group": "user", "alpha": 0.3}, reference.jrc),
    "ordered": ({"label": "seconds", "prediction": "score", "loss": "bpr", "group": "user"}, reference.bpr),
    "items": (
        {"label": "label", "prediction": "vectors", "loss": "in_batch_softmax", "group": "s1", "temperature": 0.5},
        reference.in_batch_softmax,
    ),
}
"""Every loss: the section of a task, and the loss of a reference."""


@dataclass(frozen=True)
class Step:
    """The samples of a step, `[B]` each.

    Attributes:
        rows: Their columns.
        lanes: The lane of each.
    """

    rows: dict[str, Tensor]
    lanes: Tensor


def steps_of(data: Path, config: Config, number: int) -> Iterator[Step]:
    """Yields steps of an order that is not shuffled."""
    table = pq.read_table(data)
    columns = {name: torch.from_numpy(table[name].to_numpy()) for name in table.column_names}
    lanes = Lanes(len(table), 8, config.data.global_batch_size)
    size = lanes.samples_per_step
    for step in range(number):
        rows, of_lane = [], []
        for lane in range(lanes.lanes):
            first, end = lanes.bounds(lane)
            start = first + step % lanes.steps * size
            rows += range(start, min(start + size, end))
            of_lane += [lane] * (len(rows) - len(of_lane))
        yield Step({name: column[rows] for name, column in columns.items()}, torch.tensor(of_lane))


def train_by_hand(data: Path, config: Config, number: int, task_weighting: str = "fixed") -> list[float]:
    """Returns the losses of SGD in one process, in float64, without TorchRec's sharding and the trainer's losses."""
    model = plain_model(config, Heads).double()
    variances = torch.zeros(len(config.tasks), dtype=torch.float64, requires_grad=True)
    rates = {name: config.optimizer.sparse.learning_rate for name, _ in model.tables.named_parameters(prefix="tables")}
    curve = []
    for step in steps_of(data, config, number):
        pooled: list[Tensor] = []
        hook = model.tables.register_forward_hook(lambda _, __, output, to=pooled: to.append(output.values()))
        losses = _losses(model(None, _sparse(config, step)), config, step)
        hook.remove()
        loss = _weighted(losses, variances, pooled[0], task_weighting)
        trained = {**dict(model.named_parameters()), "log_variances": variances}
        gradients = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        with torch.no_grad():
            for (name, weight), gradient in zip(trained.items(), gradients, strict=True):
                if gradient is not None:
                    weight -= rates.get(name, config.optimizer.dense.learning_rate) * gradient
        curve.append(loss.item())
    return curve


def _sparse(config: Config, step: Step) -> KeyedJaggedTensor:
    ids = [step.rows[name] for name in config.data.sparse]
    lengths = torch.ones(len(ids) * len(step.lanes), dtype=torch.int32)
    return KeyedJaggedTensor(list(config.data.sparse), torch.cat(ids), lengths=lengths)


def _losses(predictions: dict[str, Tensor], config: Config, step: Step) -> Tensor:
    """Returns the loss of each task, over the number of samples."""
    losses = []
    for name, task in config.named_tasks().items():
        weight = step.rows["weight"].double() * task.weight
        if task.where.column:
            weight[step.rows[task.where.column] == 0] *= task.where.outside
        units = step.lanes if task.across == "lane" else torch.zeros_like(step.lanes)
        total = torch.zeros((), dtype=torch.float64)
        for unit in units.unique():
            chosen = (units == unit) & (weight > 0)
            given = [predictions[task.prediction][chosen], step.rows[task.label][chosen].double()]
            options = {
                option: getattr(task, option) for option in task.kind.options if option not in ("across", "log_q")
            }
            if task.compares_samples:
                given.append(step.rows[task.group][chosen])
            total = total + (TASKS[name][1](*given, **options) * weight[chosen]).sum()
        losses.append(total / len(step.lanes))
    return torch.stack(losses)


def _weighted(losses: Tensor, variances: Tensor, pooled: Tensor, task_weighting: str) -> Tensor:
    if task_weighting == "uncertainty":
        return (losses / variances.exp() + variances / 2).sum()
    if task_weighting == "pareto":
        gradients = [torch.autograd.grad(loss, pooled, retain_graph=True)[0].flatten().double() for loss in losses]
        return reference.shortest(torch.stack(gradients)) @ losses
    return losses.sum()
