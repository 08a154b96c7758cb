"""The losses of tasks are added up over samples and tasks."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainer.batches.batch import Batch
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.tasks import TaskLosses

B = 61  # no multiple of what vector code computes at a time


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(0)
    return Batch(
        torch.zeros(B, 0),
        KeyedJaggedTensor.empty(),
        torch.randint(2, (B, 2), generator=random).float(),
        torch.rand(B, generator=random),
        torch.tensor(1 / B),
        torch.zeros(B, 0, dtype=torch.int64),
        torch.zeros(B),
        torch.arange(B),
    )


@pytest.fixture
def logits():
    return torch.randn(B, 2, generator=torch.Generator().manual_seed(1)).requires_grad_()


def losses_of(tasks, **model):
    tree = {"data": {"labels": ["click", "buy"]}, "model": model, "tasks": tasks}
    return TaskLosses(Config.model_validate(tree), torch.device("cpu"))


def test_without_tasks_no_bit_differs_from_a_loss_of_all_labels(batch, logits):
    loss, _ = losses_of({})(logits, batch)
    each = binary_cross_entropy_with_logits(logits, batch.labels, reduction="none").sum(dim=1)
    expected = (each * batch.weights).sum() * batch.scale
    assert torch.equal(loss, expected)
    assert torch.equal(*(torch.autograd.grad(value, logits)[0] for value in (loss, expected)))


def test_tasks_have_weights_and_samples(batch, logits):
    tasks = {"click": {"weight": 3.0}, "buy": {"where": {"column": "click", "outside": 0.25}}}
    loss, outputs = losses_of(tasks)(logits, batch)
    each = binary_cross_entropy_with_logits(logits, batch.labels, reduction="none").double()
    inside = torch.where(batch.labels[:, 0] == 1, 1.0, 0.25)
    expected = ((3 * each[:, 0] + inside * each[:, 1]) * batch.weights).sum() / B
    assert loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert list(outputs.predictions) == ["click", "buy"]


def test_tasks_may_judge_the_same_prediction(batch, logits):
    tasks = {"one": {"label": "click", "prediction": "p"}, "other": {"label": "buy", "prediction": "p"}}
    loss, outputs = losses_of(tasks)(logits[:, :1], batch)
    both = logits[:, :1].expand(-1, 2)
    assert torch.allclose(loss, losses_of({})(both, batch)[0])
    assert list(outputs.predictions) == ["p"]


def test_an_evaluation_computes_no_loss(batch, logits):
    loss, outputs = losses_of({"click": {"loss": "task_models:failing"}}).eval()(logits[:, :1], batch)
    assert loss == 0
    assert torch.equal(outputs.predictions["click"], logits[:, 0])


def test_a_loss_must_be_of_each_sample(batch, logits):
    with pytest.raises(InputError, match=r"tasks.click.loss gives \[\]; it must give \[B\], here \[61\]"):
        losses_of({"click": {"loss": "task_models:mean"}})(logits[:, :1], batch)
