"""HSTU, forward and gradients, against float64 loops over samples, tokens, heads and the tokens before each."""

from math import floor, log2

import pytest
import torch
from random_network import random_network
from torch.nn.functional import layer_norm, normalize, silu
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.config.root import Config

DIMENSION, LONGEST = 4, 12
LENGTHS = [3, 0, 1, LONGEST, 2, 9, 11]
NOW = 1_700_000_000
SEQUENCE = {"rows": 9, "pooling": "none"}
TIMES = {"rows": 2**31 - 1, "pooling": "raw"}


def network(retrieves, actions, times, weighted, **keys):
    """Returns the network, with weights that are all drawn at random; ids of the actions in `weighted` have weights."""
    sparse = {name: SEQUENCE | {"max_ids": LONGEST} for name in ("past", *actions)}
    for name in weighted:
        sparse[name]["weights"] = "seconds"
    sparse["item"] = SEQUENCE | {"max_ids": 1}
    data, tasks, model = {"labels": ["click", "buy"], "sparse": sparse}, {}, {"actions": actions}
    if times:
        sparse |= {"at": TIMES | {"max_ids": LONGEST}, "now": TIMES | {"max_ids": 1}}
        model |= {"history_times": "at", "target_time": "now"}
    if retrieves:
        tasks = {"next": {"label": "click", "loss": "in_batch_softmax"}}
        model["item_features"] = ["item"]
    else:
        data["dense"] = {"d0": {}, "d1": {}}
        model["over_layers"] = [5]
    model |= {"name": "hstu", "embedding_dim": DIMENSION, "target": "item", "history": "past"} | keys
    return random_network(Config.model_validate({"data": data, "model": model, "tasks": tasks}))


def samples(actions):
    """Returns what the network reads: vectors, histories and actions, times, items and the time of each sample."""
    random = torch.Generator().manual_seed(0)
    vectors = torch.randn(len(LENGTHS), 2, generator=random)
    histories = [torch.randn(sum(LENGTHS), DIMENSION, generator=random) for _ in (0, *actions)]
    steps = torch.randint(0, 30_000, (sum(LENGTHS),), generator=random)
    times = torch.cat([NOW - one.flip(0).cumsum(0).flip(0) for one in steps.split(LENGTHS)]).int()
    return vectors, histories, times, torch.randn(len(LENGTHS), DIMENSION, generator=random)


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def normalized(weights, name, x):
    return layer_norm(x, x.shape, weights[f"{name}.weight"], weights[f"{name}.bias"])


def unit(weights, name, tokens, seconds, heads, most):
    """Returns the tokens after a unit; `seconds[q][k]` is the time from token k to q."""
    columns, after = DIMENSION // heads, []
    projected = [
        silu(linear(weights, f"{name}.projections", normalized(weights, f"{name}.norm", one))).view(4, DIMENSION)
        for one in tokens
    ]
    for at, token in enumerate(tokens):
        attended = []
        for head in range(heads):
            part = slice(head * columns, (head + 1) * columns)
            total = torch.zeros(columns).double()
            for other in range(at + 1):
                score = projected[at][2, part] @ projected[other][3, part] + weights[f"{name}.by_distance"][at - other]
                if seconds:
                    score = score + weights[f"{name}.by_time"][floor(log2(max(seconds[at][other], 1)))]
                total = total + silu(score) * projected[other][1, part]
            attended.append(total / most)
        gated = normalized(weights, f"{name}.attended_norm", torch.cat(attended)) * projected[at][0]
        after.append(token + linear(weights, f"{name}.output", gated))
    return after


def state(weights, tokens, until, times, units, heads, most):
    seconds = [[int(one - other) for other in times] for one in until] if times else None
    for number in range(units):
        tokens = unit(weights, f"interest.units.{number}", tokens, seconds, heads, most)
    return normalized(weights, "interest.norm", tokens[-1])


def ranked(weights, vector, histories, times, item, **sizes):
    """Returns the logits of a sample: items and actions in turn, then the target, one by one."""
    history, *actions = histories
    tokens, at = [], []
    for place, past in enumerate(history):
        tokens.append(past)
        at.append(times[place])
        if actions:
            tokens.append(sum(one[place] for one in actions))
            at.append(times[place])
    at = [*at, NOW] if sizes.pop("timed") else []
    most = LONGEST * (1 + bool(actions)) + 1
    x = torch.cat([vector, item, state(weights, [*tokens, item], at, at, most=most, **sizes)])
    return linear(weights, "over._mlp.1._linear", linear(weights, "over._mlp.0._linear", x).relu())


def next_item(weights, vector, histories, times, item, **sizes):
    """Returns the vectors of query and item of a sample."""
    query, times = torch.zeros(DIMENSION).double(), [*times]
    if not sizes.pop("timed"):
        times = []
    if len(histories[0]):
        until = [*times[1:], NOW] if times else []
        query = state(weights, [*sum(histories)], until, times, most=LONGEST, **sizes)
    return normalize(torch.stack([query, item]), dim=1)


@pytest.mark.parametrize("retrieves", [False, True], ids=["ranks", "retrieves"])
@pytest.mark.parametrize(
    ("actions", "timed", "units", "heads", "weighted"),
    [
        ([], False, 1, 1, []),
        (["rated"], True, 2, 2, []),
        (["rated", "watched"], False, 1, 2, []),
        ([], True, 3, 1, []),
        (["rated", "watched"], True, 2, 1, ["watched"]),
    ],
)
def test_the_model_and_its_gradients_are_the_formula(retrieves, actions, timed, units, heads, weighted):
    built = network(retrieves, actions, timed, weighted, attention_blocks=units, attention_heads=heads)
    vectors, histories, times, items = samples(actions)
    histories, items = [one.requires_grad_() for one in histories], items.requires_grad_()
    lengths = torch.tensor(LENGTHS).int()
    read = {name: JaggedTensor(one, lengths=lengths) for name, one in zip(["past", *actions], histories, strict=True)}
    factors = torch.randn(sum(LENGTHS), generator=torch.Generator().manual_seed(3))
    read |= {f"{name}.weights": JaggedTensor(factors, lengths=lengths) for name in weighted}
    each = torch.ones_like(lengths)
    target = [JaggedTensor(items, lengths=each)]
    if timed:
        read["at"] = JaggedTensor(times, lengths=lengths)
        target.append(JaggedTensor(torch.full_like(lengths, NOW), lengths=each))
    found = built(vectors, target, read)
    found = found["next"] if retrieves else found
    weights = {name: value.detach().double().requires_grad_() for name, value in built.named_parameters()}
    exact = [one.detach().double().requires_grad_() for one in (*histories, items)]
    formula, sizes = next_item if retrieves else ranked, {"units": units, "heads": heads, "timed": timed}
    past = [
        one * factors[:, None] if name in weighted else one
        for name, one in zip(["past", *actions], exact[:-1], strict=True)
    ]
    parts = zip(vectors.double(), *(one.split(LENGTHS) for one in (*past, times)), exact[-1], strict=True)
    expected = torch.stack(
        [formula(weights, vector, before, at.tolist(), item, **sizes) for vector, *before, at, item in parts]
    )
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    down = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).double()
    (found * down).sum().backward()
    (expected * down).sum().backward()
    pairs = [(name, value.grad, weights[name].grad) for name, value in built.named_parameters()]
    pairs += [("inputs", value.grad, other.grad) for value, other in zip((*histories, items), exact, strict=True)]
    for name, gradient, wanted in pairs:
        scale = wanted.abs().max()
        assert (gradient.double() - wanted).abs().max() <= 1e-5 * max(scale, 1), name
