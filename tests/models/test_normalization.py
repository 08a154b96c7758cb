"""Batch and layer normalization against torch and NumPy in float64, on one rank and on two."""

import normalized
import numpy as np
import pytest
import torch
from forked import run_forked
from normalized import COLUMNS, COUNTED, ROWS, STEPS, batches
from test_pooled_formulas import network, vectors


def of_torch() -> list[torch.Tensor]:
    """Returns the same by torch's layer in float64, of the samples that count."""
    norm, found = torch.nn.BatchNorm1d(COLUMNS).double(), []
    for values, factors in batches():
        values = values[COUNTED].double().requires_grad_()
        out = norm(values)
        (out * factors[COUNTED]).sum().backward()
        found += [out.detach(), values.grad]
    return [*found, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var]


def assert_alike(found: list[torch.Tensor]) -> None:
    for one, other in zip(found, of_torch(), strict=True):
        one = one[COUNTED] if len(one) == ROWS else one
        np.testing.assert_allclose(one.detach(), other.detach(), rtol=2e-5, atol=2e-5)


def test_samples_that_count_are_normalized_as_by_torch():
    assert_alike(normalized.normalized())


def test_statistics_are_those_of_the_global_batch_on_two_ranks(tmp_path):
    run_forked(normalized.on_ranks, 2, tmp_path, folder=tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    of_samples = [torch.cat(both) for both in zip(first[: 2 * STEPS], second[: 2 * STEPS], strict=True)]
    of_weights = [one + other for one, other in zip(first[-4:-2], second[-4:-2], strict=True)]
    assert_alike([*of_samples, *of_weights, *first[-2:]])
    assert all(torch.equal(one, other) for one, other in zip(first[-2:], second[-2:], strict=True))


@pytest.mark.parametrize("kind", ["batch", "layer"])
def test_each_hidden_layer_is_normalized_before_its_activation(kind):
    built, weights = network("wide_deep", over_layers=[6, 3], normalization=kind)
    x = vectors()
    expected = x @ weights["wide.weight"].T + weights["wide.bias"]
    for at in range(2):
        linear, norm = f"deep._mlp.{at}._linear", f"deep._mlp.{at}._activation_fn.0"
        assert (f"{linear}.bias" in weights) == (kind == "layer")  # whose mean would take it away
        x = x @ weights[f"{linear}.weight"].T + weights.get(f"{linear}.bias", 0)
        if kind == "layer":
            x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
        else:
            x = (x - weights[f"{norm}.running_mean"]) / np.sqrt(weights[f"{norm}.running_variance"] + 1e-5)
        x = np.maximum(x * weights[f"{norm}.weight"] + weights[f"{norm}.bias"], 0)
    expected += x @ weights["deep._mlp.2._linear.weight"].T + weights["deep._mlp.2._linear.bias"]
    with torch.no_grad():
        np.testing.assert_allclose(built.eval()(torch.from_numpy(vectors())), expected, rtol=1e-6)
