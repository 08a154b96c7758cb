"""The losses of several tasks become one as the papers say."""

import pytest
import reference_losses as reference
import torch

from trainer.models.weighting import Fixed, Uncertainty, shortest


@pytest.fixture
def batch():
    random = torch.Generator().manual_seed(0)
    each = torch.rand(20, 3, generator=random, dtype=torch.float64).requires_grad_()
    weights = torch.rand(20, generator=random, dtype=torch.float64)
    return each, weights, torch.tensor(0.05, dtype=torch.float64)


def test_the_fixed_sum(batch):
    each, weights, scale = batch
    expected = sum(weights[b] * each[b, t] for b in range(20) for t in range(3)) / 20
    torch.testing.assert_close(Fixed(3, 1, torch.device("cpu"))(each, weights, scale), expected)


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_uncertainty(batch, micro_batches):
    """In parts, whose losses add up, and gradients by hand."""
    each, weights, scale = batch
    rule = Uncertainty(3, micro_batches, torch.device("cpu")).double()
    variances = torch.tensor([0.5, 1.0, 3.0]).double()
    rule.log_variances.data.copy_(variances.log())
    parts = zip(each.chunk(micro_batches), weights.chunk(micro_batches), strict=True)
    found = sum(rule(part, of_part, scale) for part, of_part in parts)
    losses = (each * weights[:, None]).sum(0) / 20
    torch.testing.assert_close(found, (losses / variances + variances.sqrt().log()).sum())
    found.backward()
    torch.testing.assert_close(rule.log_variances.grad, 0.5 - losses.detach() / variances)
    torch.testing.assert_close(each.grad, weights[:, None] / 20 / variances)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("tasks", [2, 3, 6])
def test_the_shortest_mean_of_vectors(tasks, seed):
    random = torch.Generator().manual_seed(seed)
    scales = torch.rand(tasks, 1, generator=random, dtype=torch.float64) + 0.1
    vectors = scales * (torch.randn(tasks, 8, generator=random, dtype=torch.float64) + 0.5)
    found = shortest(vectors @ vectors.T)
    torch.testing.assert_close(found, reference.shortest(vectors), rtol=0, atol=1e-4)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)
    # What makes it Pareto: no vector's inner product with the mean is smaller than the mean's own.
    mean = found @ vectors
    assert (vectors @ mean).min() >= mean @ mean - 1e-6


@pytest.mark.parametrize("vectors", [[[0.0], [0.0]], [[1.0], [1.0]], [[1e-20], [3.0]]])
def test_degenerate_gradients(vectors):
    vectors = torch.tensor(vectors).double()
    found = shortest(vectors @ vectors.T)
    assert found.isfinite().all()
    assert found.sum() == pytest.approx(1)
