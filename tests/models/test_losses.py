"""Every loss and its gradient are those of a plain float64 computation."""

from functools import partial

import pytest
import reference_losses as reference
import torch

from trainer.config.data import LaneRows
from trainer.config.tasks import LOSS_KINDS
from trainer.models.losses import LOSSES, LOSSES_OVER_SAMPLES, LossOverSamples, to_logit

LANES, SAMPLES = 3, 16
OF_ONE = [
    ("binary", {}),
    ("binary", {"label_smoothing": 0.2}),
    ("focal", {}),
    ("focal", {"gamma": 1.5, "alpha": 0.3}),
    ("softmax", {}),
    ("softmax", {"label_smoothing": 0.1}),
    ("squared", {}),
    ("absolute", {}),
    ("huber", {"delta": 0.7}),
    ("poisson", {}),
]
OF_MANY = [
    ("jrc", {"alpha": 0.3}),
    ("bpr", {}),
    ("in_batch_softmax", {}),
    ("in_batch_softmax", {"temperature": 0.3}),
]
GROUPED = [(name, options, True) for name, options in OF_MANY] + [("in_batch_softmax", {}, False)]


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def integers(high, *shape, seed=1):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def assert_same(found, expected, prediction):
    """Compares losses, and the gradients of a sum in which each has another weight."""
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    weights = torch.linspace(0.5, 2, len(found)).double()
    gradients = [torch.autograd.grad((losses * weights).sum(), prediction)[0] for losses in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_every_loss_has_its_options_in_the_configuration():
    assert LOSS_KINDS.keys() == LOSSES.keys() | LOSSES_OVER_SAMPLES.keys()


@pytest.mark.parametrize(("name", "options"), OF_ONE)
def test_losses_of_single_samples(name, options):
    prediction = random(60, 4) if name == "softmax" else random(60)
    label = integers(4, 60).double() if LOSS_KINDS[name].numeric else integers(2, 60).double()
    assert_same(
        LOSSES[name](prediction, label, **options), getattr(reference, name)(prediction, label, **options), prediction
    )


def test_counts_have_the_loss_of_torch():
    prediction, label = random(60), 3 * torch.rand(60, generator=torch.Generator().manual_seed(5)).double()
    expected = torch.nn.PoissonNLLLoss(log_input=True, reduction="none")(prediction, label)
    assert_same(LOSSES["poisson"](prediction, label), expected, prediction)
    assert LOSSES["poisson"](prediction, label - 3).isnan().all()


@pytest.mark.parametrize("label", [0.0, 0.3, 1.0])
def test_the_logarithm_of_a_probability(label):
    logarithm = torch.linspace(-8, -0.01, 100).double().requires_grad_()
    labels = torch.full((100,), label).double()
    assert_same(LOSSES["binary"](to_logit(logarithm), labels), reference.log_probability(logarithm, labels), logarithm)


@pytest.mark.parametrize("logit", [-80.0, -20.0, -1.0, 0.0, 1.0, 20.0, 80.0])
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_a_log_sigmoid_is_as_good_as_its_logit(logit, label):
    """In float32, far beyond where 1 - e^x is 0."""
    labels = torch.tensor([label])
    direct, logarithm = torch.tensor([logit], requires_grad=True), torch.tensor([logit], requires_grad=True)
    expected = LOSSES["binary"](direct, labels)
    found = LOSSES["binary"](to_logit(torch.nn.functional.logsigmoid(logarithm)), labels)
    (expected_gradient,), (gradient,) = torch.autograd.grad(expected, direct), torch.autograd.grad(found, logarithm)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-30)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-5, atol=1e-30)


def test_a_certain_event_has_a_finite_loss():
    certain = torch.zeros(2, requires_grad=True)
    losses = LOSSES["binary"](to_logit(certain), torch.tensor([0.0, 1.0]))
    losses.sum().backward()
    assert losses.isfinite().all()
    assert certain.grad.isfinite().all()
    assert losses[1] < 1e-37


@pytest.mark.parametrize(("name", "options", "grouped"), GROUPED)
def test_losses_over_the_samples_of_a_lane(name, options, grouped):
    """Some of which have weight 0, and a lane has none but those."""
    shape = [{2: 2, "D": 5}[size] for size in LOSS_KINDS[name].shape]
    prediction, label = random(LANES * SAMPLES, *shape), integers(2, LANES * SAMPLES).double()
    group = integers(4, LANES * SAMPLES, seed=2) if grouped else None
    present = integers(5, LANES * SAMPLES, seed=3) > 0
    present[-SAMPLES:] = False

    def loss(*samples):
        return LOSSES_OVER_SAMPLES[name](*samples, **options)

    log_q = torch.rand(len(label), generator=torch.Generator().manual_seed(4)).double().log()
    found = LossOverSamples(loss, SAMPLES)(prediction, label, group, present, log_q)
    groups = torch.arange(len(label)) if group is None else group
    lanes = [torch.arange(len(label)) // SAMPLES == lane for lane in range(LANES - 1)]
    parts = [
        getattr(reference, name)(prediction[lane & present], label[lane & present], groups[lane & present], **options)
        for lane in lanes
    ]
    assert_same(found[present], torch.cat(parts), prediction)
    assert (found[~present] == 0).all()


@pytest.mark.parametrize("name", LOSSES_OVER_SAMPLES)
def test_lanes_without_samples_have_finite_gradients(name):
    shape = [{2: 2, "D": 5}[size] for size in LOSS_KINDS[name].shape]
    prediction = random(SAMPLES, *shape)
    label, group = integers(2, SAMPLES).double(), integers(4, SAMPLES)
    options = {"rows": LaneRows(6, 4, 1)} if name == "sampled_softmax" else {}
    loss = LossOverSamples(partial(LOSSES_OVER_SAMPLES[name], **options), SAMPLES)
    nothing = torch.zeros(SAMPLES, dtype=torch.bool), torch.full((SAMPLES,), -torch.inf).double()
    loss(prediction, label, group, *nothing).sum().backward()
    assert (prediction.grad == 0).all()


def test_a_label_of_no_class_makes_the_loss_nan_and_no_gradient():
    """As on a GPU, where nothing refuses it."""
    logits = torch.randn(5, 3, requires_grad=True)
    losses = LOSSES["softmax"](logits, torch.tensor([2.0, 3.0, -1.0, 1.5, -100.0]))
    assert losses.isnan().tolist() == [False, True, True, True, True]
    losses.sum().backward()
    assert logits.grad[0].abs().sum() > 0
    assert not logits.grad[1:].any()
