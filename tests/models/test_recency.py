"""The sum of latest items, forward and gradients, against float64 loops over samples and items."""

from math import floor, log2

import pytest
import torch
from random_network import random_network
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.config.root import Config

DIMENSION, LONGEST = 4, 12
LENGTHS = [3, 0, 1, LONGEST, 2, 9, 11]
NOW = 1_700_000_000


def network(timed, retrieves):
    """Returns the network, with weights that are all drawn at random."""
    sparse = {name: {"rows": 9, "pooling": "none", "max_ids": n} for name, n in (("past", LONGEST), ("item", 1))}
    model = {"name": "recency", "embedding_dim": DIMENSION, "target": "item", "history": "past"}
    if timed:
        sparse |= {
            name: {"rows": 2**31 - 1, "pooling": "raw", "max_ids": n} for name, n in (("at", LONGEST), ("now", 1))
        }
        model |= {"history_times": "at", "target_time": "now"}
    tasks = {"next": {"label": "click", "loss": "in_batch_softmax"}} if retrieves else {}
    model |= {"item_features": ["item"], "normalize": False} if retrieves else {"over_layers": [5]}
    data = {"labels": ["click"], "sparse": sparse}
    return random_network(Config.model_validate({"data": data, "model": model, "tasks": tasks}))


def interest(weights, history, times):
    """Returns the sum of one sample's items, one by one."""
    total = torch.zeros(DIMENSION).double()
    for place, item in enumerate(history):
        age = len(history) - 1 - place
        weight, columns = weights["interest.by_place"][age], 1 + weights["interest.columns_by_place"][age]
        if times:
            bucket = floor(log2(NOW - times[place] + 1))
            weight = weight + weights["interest.by_time"][bucket]
            columns = columns + weights["interest.columns_by_time"][bucket]
        total = total + weight.exp() * columns * item
    return total


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


@pytest.mark.parametrize("retrieves", [False, True], ids=["ranks", "retrieves"])
@pytest.mark.parametrize("timed", [False, True], ids=["places", "times"])
def test_the_model_and_its_gradients_are_the_formula(timed, retrieves):
    built, random = network(timed, retrieves), torch.Generator().manual_seed(0)
    history = torch.randn(sum(LENGTHS), DIMENSION, generator=random, requires_grad=True)
    items = torch.randn(len(LENGTHS), DIMENSION, generator=random)
    ages = torch.randint(0, 30_000, (sum(LENGTHS),), generator=random)
    ages[0] = 0  # in the very second of the target
    times, lengths = (NOW - ages).int(), torch.tensor(LENGTHS).int()
    each = torch.ones_like(lengths)
    target, read = [JaggedTensor(items, lengths=each)], {"past": JaggedTensor(history, lengths=lengths)}
    if timed:
        read["at"] = JaggedTensor(times, lengths=lengths)
        target.append(JaggedTensor(torch.full_like(lengths, NOW), lengths=each))
    found = built(torch.zeros(len(LENGTHS), 0), target, read)

    weights = {name: value.detach().double().requires_grad_() for name, value in built.named_parameters()}
    exact, expected = history.detach().double().requires_grad_(), []
    for past, at, item in zip(exact.split(LENGTHS), times.split(LENGTHS), items.double(), strict=True):
        total = interest(weights, past, at.tolist() if timed else [])
        x = torch.cat([item, total])
        over = None if retrieves else linear(weights, "over._mlp.0._linear", x).relu()
        expected.append(torch.stack([total, item]) if retrieves else linear(weights, "over._mlp.1._linear", over))
    expected, found = torch.stack(expected), found["next"] if retrieves else found
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    down = torch.randn(expected.shape, generator=random).double()
    (found * down).sum().backward()
    (expected * down).sum().backward()
    pairs = [(name, value.grad, weights[name].grad) for name, value in built.named_parameters()]
    for name, gradient, wanted in [*pairs, ("history", history.grad, exact.grad)]:
        scale = wanted.abs().max()
        assert (gradient.double() - wanted).abs().max() <= 1e-5 * max(scale, 1), name
