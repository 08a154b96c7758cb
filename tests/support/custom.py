"""A user's own model, loss, metric and decay, for tests that name them in a configuration."""

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from trainer.config.optimizer import Schedule
from trainer.core.distributed import DistributedContext, gather_to_all
from trainer.metrics.base import Metric
from trainer.models.base import ModelInputs
from trainer.models.dlrm import dlrm


class Sum(nn.Module):
    """Logits are a linear layer over all pooled embeddings; dense features are not used."""

    def __init__(self, inputs):
        super().__init__()
        self.tables, self.features = inputs.tables, inputs.sparse_features
        width = sum(table.embedding_dim * len(table.feature_names) for table in inputs.tables.embedding_bag_configs())
        self.head = nn.Linear(width, inputs.labels, device=inputs.device)

    def forward(self, dense, sparse):
        pooled = self.tables(sparse)
        return self.head(torch.cat([pooled[feature] for feature in self.features], dim=1))


class SumOfSequences(Sum):
    """The same, with the sums of sequences after the pooled embeddings."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.sequences, self.lengths = inputs.sequences, inputs.sequence_features
        width = self.head.in_features + len(self.lengths) * inputs.sequences.embedding_dim()
        self.head = nn.Linear(width, inputs.labels, device=inputs.device)

    def forward(self, dense, sparse):
        pooled, found = self.tables(sparse), self.sequences(sparse)
        sums = [found[feature].to_padded_dense(length).sum(1) for feature, length in self.lengths.items()]
        return self.head(torch.cat([*(pooled[feature] for feature in self.features), *sums], dim=1))


class SumOfAll(SumOfSequences):
    """The same, with the pooled embeddings of features whose table has sequences, too, after all others."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.pool = inputs.pool_sequences()
        width = self.head.in_features + len(inputs.pooled_sequences) * inputs.sequences.embedding_dim()
        self.head = nn.Linear(width, inputs.labels, device=inputs.device)

    def forward(self, dense, sparse):
        pooled, found = self.tables(sparse), self.sequences(sparse)
        parts = [pooled[feature] for feature in self.features]
        parts += [found[feature].to_padded_dense(length).sum(1) for feature, length in self.lengths.items()]
        return self.head(torch.cat([*parts, self.pool(found, sparse)], dim=1))


class Renamed(SumOfSequences):
    """The same, under a name by which checkpoints do not know its tables."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.unpooled = self.sequences
        del self.sequences


class Normalized(Sum):
    """The same, of embeddings that are normalized over the batch."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.norm = nn.BatchNorm1d(self.head.in_features, device=inputs.device)

    def forward(self, dense, sparse):
        return self.head(self.norm(self.tables(sparse).values()))


class Dropped(Sum):
    """The same as Sum, of embeddings half of which are dropped, others in each step."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.dropout = nn.Dropout(0.5)

    def forward(self, dense, sparse):
        return self.head(self.dropout(self.tables(sparse).values()))


class Scaled(Sum):
    """The same as Sum, times a weight that only a function of its own knows."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.scale = nn.Parameter(torch.ones((), device=inputs.device))
        self.scaled = lambda logits: logits * self.scale

    def forward(self, dense, sparse):
        return self.scaled(super().forward(dense, sparse))


class Locked(Sum):
    """The same as Sum, with a part that cannot be copied."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.lock = threading.Lock()


class Bessel(Sum):
    """The same as Sum, with a function that ONNX does not have."""

    def forward(self, dense, sparse):
        return torch.special.i1(super().forward(dense, sparse))


class Branch(nn.Linear):
    """A linear layer that doubles its outputs if most of them are positive."""

    def forward(self, vectors):
        outputs = super().forward(vectors)
        return 2 * outputs if (outputs > 0).float().mean() > 0.5 else outputs


class Branching(Sum):
    """The same as Sum, with a branch on values, which torch.fx does not see and torch.export does not allow."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.head = Branch(self.head.in_features, self.head.out_features, device=inputs.device)


def sum_of_embeddings(inputs: ModelInputs) -> nn.Module:
    """Is called by `model.name = "custom:sum_of_embeddings"`."""
    assert inputs.config.arguments == {"depth": 3}
    return Sum(inputs)


def unhurried(inputs: ModelInputs) -> nn.Module:
    """A DLRM that takes 50 ms more for a step, for jobs without an end, which leave the processor to others.

    A job that a test lets train to its end is `gated` instead.
    """
    return _before_each_step(inputs, lambda _: time.sleep(0.05))


def gated(inputs: ModelInputs) -> nn.Module:
    """A DLRM that waits at a gate (`trainer_process.Gate`), if its test gave it one, after so many steps."""
    gate, steps = os.environ.get("GATE", ""), int(os.environ.get("GATE_STEPS", "0"))

    def wait(step: int) -> None:
        while gate and step > steps and not os.path.exists(gate):
            time.sleep(0.02)

    return _before_each_step(inputs, wait)


def unhurried_on_good_nodes(inputs: ModelInputs) -> nn.Module:
    """The same as `unhurried`, on nodes of Slurm that the file in `BAD_NODES` does not name."""
    if os.environ["SLURMD_NODENAME"] in Path(os.environ["BAD_NODES"]).read_text().split():
        raise RuntimeError("a GPU of this node is broken")
    return unhurried(inputs)


def _before_each_step(inputs: ModelInputs, action: Callable[[int], None]) -> nn.Module:
    """Returns a DLRM that calls `action` with the number of the step since the job started."""
    model, steps = dlrm(inputs), itertools.count(1)

    def hook(_: nn.Module, arguments: tuple[Tensor]) -> None:
        if not isinstance(arguments[0], fx.Proxy):
            action(next(steps))

    model.dense_arch.register_forward_pre_hook(hook)
    return model


def squared_error(logits: Tensor, labels: Tensor) -> Tensor:
    """Is called by `model.loss = "custom:squared_error"`; returns `[B]`."""
    return (logits.sigmoid() - labels).square().sum(dim=1)


class RecordedSGD(torch.optim.SGD):
    """SGD whose state is the learning rate of the last step, for `optimizer.dense.name = "custom:RecordedSGD"`."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rate"] = torch.tensor(group["lr"], dtype=torch.float64)


class ForgetfulSGD(torch.optim.SGD):
    """SGD that turns momentum on after its first step, and keeps that outside of its state."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            group["momentum"] = 0.5


class NamelessRate(torch.optim.Optimizer):
    """Takes a learning rate, and keeps it from schedules."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"rate": lr})

    def step(self, closure=None):
        pass


class CountingSGD(torch.optim.SGD):
    """SGD that counts its steps in a state that is no tensor."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["steps"] = self.state[parameter].get("steps", 0) + 1


class Restless(torch.optim.SGD):
    """SGD whose steps have a least length."""

    def step(self, closure=None):
        super().step(closure)
        for parameter in self.param_groups[0]["params"]:
            parameter.data += 1e-3


def infinite_for_half(logits: Tensor, labels: Tensor) -> Tensor:
    """The binary loss, but infinite for a sample whose label is 0.5, like its gradient."""
    each = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (each * torch.where(labels == 0.5, torch.inf, 1.0)).sum(dim=1)


class BrierScore(Metric):
    """Mean squared error of the predictions, for `evaluate.metrics = ["custom:BrierScore"]`."""

    higher_is_better = False

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        errors = (logits.sigmoid() - labels).square()
        self.state += torch.stack([weights.sum(), (weights * errors).sum()])

    def compute(self, state: Tensor) -> dict[str, float]:
        weight, error = state.tolist()
        return {"": error / weight}


class MedianError(Metric):
    """Median absolute error: a state that cannot be summed, but is gathered from all ranks."""

    higher_is_better = False
    takes = "value"

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.errors = []

    def update(self, logits: Tensor, labels: Tensor, weights: Tensor) -> None:
        self.errors.append((logits - labels).abs()[weights > 0])

    def total(self, context: DistributedContext) -> Tensor:
        return torch.cat(gather_to_all(torch.cat(self.errors), context))

    def compute(self, state: Tensor) -> dict[str, float]:
        return {"": state.median().item()}


def halved(schedule: Schedule, step: int) -> float:
    """Is called by `schedule.decay = "custom:halved"`: half the rate at every step."""
    return 0.5


def per_count(schedule: Schedule, count: int) -> float:
    """Is called by `schedule.decay = "custom:per_count"`: one over the step, or over the epochs done and one."""
    return 1 / (count + (schedule.unit == "epochs"))
