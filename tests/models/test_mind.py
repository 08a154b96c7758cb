"""Several interests of a history, forward and gradients, against float64 loops over samples, interests and items."""

from math import log2

import numpy as np
import pytest
import torch
from random_network import random_network
from torch.nn import functional
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.config.root import Config

DIMENSION, LONGEST, MOST = 4, 20, 3
LENGTHS = [3, 0, 1, LONGEST, 4, 7, 8, 15]


def network(**model):
    """Returns the network, with weights that are all drawn at random."""
    sparse = {name: {"rows": 9, "pooling": "none", "max_ids": n} for name, n in (("past", LONGEST), ("item", 1))}
    model = {"name": "mind", "embedding_dim": DIMENSION, "target": "item", "history": "past", "interests": MOST} | model
    model |= {"item_features": ["item"], "over_layers": [5]}
    data = {"labels": ["click"], "dense": {"d0": {}}, "sparse": sparse}
    tasks = {"next": {"label": "click", "loss": "in_batch_softmax"}}
    return random_network(Config.model_validate({"data": data, "model": model, "tasks": tasks}))


def squashed(capsule):
    square = (capsule * capsule).sum()
    return capsule * square.sqrt() / (1 + square)


def interests(weights, items, rounds):
    """Returns the interests of one sample, in loops; gradients flow through the last round's sums."""
    number = max(1, min(MOST, int(log2(max(len(items), 1)))))
    if not len(items):
        return [torch.zeros(DIMENSION).double()]
    mapped = [weights["interest.mapping.weight"] @ item for item in items]
    logits = np.random.default_rng(0).standard_normal((LONGEST, MOST))[: len(items), :number].astype(np.float32)
    logits = [[float(one) for one in row] for row in logits]
    for last in [*[False] * (rounds - 1), True]:
        shares = [[np.exp(one) / sum(map(np.exp, row)) for one in row] for row in logits]
        each = [sum(row[k] * item for row, item in zip(shares, mapped, strict=True)) for k in range(number)]
        capsules = [squashed(one) for one in each]
        if not last:
            for row, item in zip(logits, mapped, strict=True):
                for k, capsule in enumerate(capsules):
                    row[k] += float(capsule @ item)
    return capsules


def vectors(weights, items, item, user, rounds, normalize, item_bias):
    """Returns the vectors of all interests, the first in place of those that are missing, and of the item."""
    found = []
    for one in interests(weights, items, rounds):
        hidden = torch.cat([one, user])
        hidden = (weights["over._mlp.0._linear.weight"] @ hidden + weights["over._mlp.0._linear.bias"]).relu()
        found.append(weights["over._mlp.1._linear.weight"] @ hidden + weights["over._mlp.1._linear.bias"])
    found += found[:1] * (MOST - len(found))
    whole = torch.stack([*found, item])
    first, whole = whole[:, :1], whole[:, 1:] if item_bias else whole
    whole = functional.normalize(whole, dim=1) if normalize else whole
    if not item_bias:
        return whole
    return torch.cat([torch.cat([torch.ones_like(first[:-1]), first[-1:]]), whole], dim=1)


@pytest.mark.parametrize("training", [False, True], ids=["all", "closest"])
@pytest.mark.parametrize(("rounds", "normalize", "item_bias"), [(3, False, False), (1, True, False), (3, True, True)])
def test_the_model_and_its_gradients_are_the_formula(rounds, normalize, item_bias, training):
    built = network(routing_rounds=rounds, normalize=normalize, item_bias=item_bias).train(training)
    random = torch.Generator().manual_seed(0)
    history = torch.randn(sum(LENGTHS), DIMENSION, generator=random, requires_grad=True)
    items = torch.randn(len(LENGTHS), DIMENSION, generator=random)
    users = torch.randn(len(LENGTHS), 1, generator=random)
    lengths = torch.tensor(LENGTHS).int()
    target = [JaggedTensor(items, lengths=torch.ones_like(lengths))]
    found = built(users, target, {"past": JaggedTensor(history, lengths=lengths)})["next"]

    weights = {name: value.detach().double().requires_grad_() for name, value in built.named_parameters()}
    exact, expected = history.detach().double().requires_grad_(), []
    for past, item, user in zip(exact.split(LENGTHS), items.double(), users.double(), strict=True):
        each = vectors(weights, [*past], item, user, rounds, normalize, item_bias)
        if training:
            closest = max(range(MOST), key=lambda k, each=each: float(each[k] @ each[-1]))
            each = each[[closest, -1]]
        expected.append(each)
    expected = torch.stack(expected)
    assert found.shape == (len(LENGTHS), 2 if training else MOST + 1, DIMENSION)
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)
    down = torch.randn(expected.shape, generator=random).double()
    (found * down).sum().backward()
    (expected * down).sum().backward()
    pairs = [(name, value.grad, weights[name].grad) for name, value in built.named_parameters()]
    for name, gradient, wanted in [*pairs, ("history", history.grad, exact.grad)]:
        assert (gradient.double() - wanted).abs().max() <= 1e-5 * max(wanted.abs().max(), 1), name
