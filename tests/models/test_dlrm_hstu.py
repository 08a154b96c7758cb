"""The model of DLRMv4, forward and gradients, against float64 loops over samples, tokens, heads and earlier tokens."""

from math import cos, pi, sin, sqrt

import pytest
import torch
from random_network import random_network
from torch.nn.functional import layer_norm, silu
from torchrec.sparse.jagged_tensor import JaggedTensor

from torchx_recsys.apps.export.features import Sequence
from trainer.config.root import Config
from trainer.models.builder import build_model
from trainer.models.recompute import recompute_parts
from trainer.models.step_samples import samples_of

DIMENSION, LONGEST, HEADS, DIVISOR = 4, 12, 2, 16.0
LENGTHS = [3, 0, 1, LONGEST, 2, 9, 11]
NOW, MINUTE, HOUR = 1_700_000_000, 60, 3600
SEQUENCE, TIME = {"rows": 9, "pooling": "none"}, {"rows": 2**31 - 1, "pooling": "raw"}
ATTRIBUTES, CONTEXT = {"past_artist": "artist", "past_album": "album"}, ["user", "hour"]


def config(dimension=DIMENSION, longest=LONGEST, context=CONTEXT, bare=False, **keys):
    """Returns the configuration of a model; a bare one reads nothing but items."""
    of_history, of_target = {"max_ids": longest}, {"max_ids": 1}
    model = {"name": "dlrm_hstu", "embedding_dim": dimension, "target": "item", "history": "past"}
    sparse = {"past": SEQUENCE | of_history | {"table": "item"}, "item": SEQUENCE | of_target}
    if not bare:
        sparse |= {past: SEQUENCE | of_history | {"table": now} for past, now in ATTRIBUTES.items()}
        sparse |= {name: SEQUENCE | of_target for name in (*ATTRIBUTES.values(), *context)}
        sparse |= {"how": TIME | of_history | {"rows": 8}, "at": TIME | of_history, "now": TIME | of_target}
        model |= {"history_attributes": [*ATTRIBUTES], "target_attributes": [*ATTRIBUTES.values()]}
        model |= {"actions": ["how"], "context": context, "history_times": "at", "target_time": "now"}
    if keys.get("history", "") is None:
        for name in ("past", *ATTRIBUTES, "how", "at", "now"):
            sparse.pop(name, None)
        model |= {"history_attributes": [], "actions": [], "history_times": None, "target_time": None}
    data = {"labels": ["click", "buy"], "dense": {} if bare else {"age": {}}, "sparse": sparse}
    model |= {"attention_heads": HEADS, "attention_blocks": 2, "attention_divisor": DIVISOR, "attention_block": 5}
    return Config.model_validate({"data": data, "model": model | keys})


def samples(bare=False, context=CONTEXT):
    """Returns what the network reads: dense features, then histories and candidates by name."""
    random = torch.Generator().manual_seed(0)

    def drawn(rows):
        return torch.randn(rows, DIMENSION, generator=random).double().requires_grad_()

    total, number = sum(LENGTHS), len(LENGTHS)
    history, target = {"past": drawn(total)}, {"item": drawn(number)}
    if not bare:
        history |= {name: drawn(total) for name in ATTRIBUTES}
        history["how"] = torch.randint(0, 8, (total,), generator=random)
        steps = torch.randint(0, 30_000, (total,), generator=random)
        history["at"] = torch.cat([NOW - one.flip(0).cumsum(0).flip(0) for one in steps.split(LENGTHS)])
        target |= {name: drawn(number) for name in (*ATTRIBUTES.values(), *context)}
        target["now"] = NOW + HOUR * torch.arange(number)
    vectors = torch.randn(number, 0 if bare else 1, generator=random).double()
    return vectors, history, target


def read(vectors, history, target, rows=slice(None)):
    """Returns the arguments of the network for some of the samples."""
    lengths = torch.tensor(LENGTHS[rows])
    past = {
        name: JaggedTensor(torch.cat(one.split(LENGTHS)[rows]), lengths=lengths.int()) for name, one in history.items()
    }
    present = torch.ones_like(lengths)
    now = [Sequence(one[rows][:, None], present) for one in target.values()]
    return vectors[rows], now, past


def normalized(weights, name, x, eps=1e-5):
    return layer_norm(x, x.shape, weights[f"{name}.weight"], weights[f"{name}.bias"], eps)


def linear(weights, name, x):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layers(weights, name, x):
    hidden = linear(weights, f"{name}.0", x)
    return linear(weights, f"{name}.2", hidden * normalized(weights, f"{name}.1.norm.0", hidden).sigmoid())


def token_layers(weights, name, x):
    name = f"interest.tokens.{name}"
    return normalized(weights, f"{name}.3", layers(weights, name, x))


def tokens_of(weights, history, target, context):
    """Returns the tokens of a sample: context, events, candidate."""
    own = {name.removeprefix("interest.tokens."): one for name, one in weights.items()}
    found, length = [], len(history["past"])
    for slot, name in enumerate(context):
        position = own["positions"][slot]
        passed = own["times"][min(int(sqrt(int(target["now"]) / MINUTE)), 2048)] if "now" in target else 0
        found.append(2 * (target[name] @ own["of_context"][slot] + own["context_bias"][slot]) + position + passed)
    for place in range(length + 1):
        is_past = place < length
        item = token_layers(weights, "of_item", history["past"][place] if is_past else target["item"])
        if "artist" in target:
            names = ATTRIBUTES.items()
            attributes = [history[past][place] if is_past else target[now] for past, now in names]
            item = item + token_layers(weights, "of_attributes", torch.cat(attributes))
        if "how" in history:
            bits = [own["bits"][bit] * (int(history["how"][place]) >> bit & 1) for bit in range(3)] if is_past else []
            item = item + token_layers(weights, "of_action", torch.cat(bits) if is_past else own["no_action"])
        item = 2 * item + own["positions"][len(context) + length - place]  # the root of 4 columns
        if "at" in history:
            passed = int(target["now"] - history["at"][place]) if is_past else 0
            item = item + own["times"][int(sqrt(passed / MINUTE))]
        found.append(item)
    return found


def unit(weights, name, tokens):
    columns, after = DIMENSION // HEADS, []
    projected = [
        linear(weights, f"{name}.projections", normalized(weights, f"{name}.norm", one, 1e-6)) for one in tokens
    ]
    for at, token in enumerate(tokens):
        attended = []
        for head in range(HEADS):
            part = slice(head * columns, (head + 1) * columns)
            total = torch.zeros(columns).double()
            for other in range(at + 1):
                query, key = projected[at].view(4, -1)[2, part], projected[other].view(4, -1)[3, part]
                total = total + silu(query @ key / sqrt(columns)) / DIVISOR * projected[other].view(4, -1)[1, part]
            attended.append(total)
        gates, attended = silu(projected[at][:DIMENSION]), torch.cat(attended)
        seen = torch.cat([gates, attended, gates * normalized(weights, f"{name}.attended_norm", attended, 1e-6)])
        after.append(token + seen @ weights[f"{name}.output.weight"].T)
    return after


def logits(weights, vector, history, target, context, units=2):
    tokens = tokens_of(weights, history, target, context)
    for number in range(units):
        tokens = unit(weights, f"interest.units.{number}", tokens)
    parts = [tokens[-1]]
    if "now" in target:
        hours = int(target["now"]) // HOUR
        turns = 2 * pi * (hours % 24) / 24, 2 * pi * (hours // 24 % 7) / 7
        parts.append(torch.tensor([of(turn) for turn in turns for of in (cos, sin)], dtype=torch.float64))
    user = normalized(weights, "user.1", linear(weights, "user.0", torch.cat([*parts, vector])))
    attributes = [target[name] for name in ATTRIBUTES.values() if name in target]
    item = normalized(weights, "item.3", layers(weights, "item", torch.cat([target["item"], *attributes])))
    return layers(weights, "over", user * item)


@pytest.mark.parametrize("bare", [False, True], ids=["whole", "bare"])
def test_the_model_and_its_gradients_are_the_formula(bare):
    built, (vectors, history, target) = random_network(config(bare=bare)).double(), samples(bare)
    found = built(*read(vectors, history, target))
    weights = {name: value.detach().requires_grad_() for name, value in built.named_parameters()}
    apart = {name: one.detach().requires_grad_(one.requires_grad) for name, one in (history | target).items()}
    parts = [
        (
            {name: apart[name].split(LENGTHS)[row] for name in history},
            {name: apart[name][row] for name in target},
        )
        for row in range(len(LENGTHS))
    ]
    context = [] if bare else CONTEXT
    rows = [logits(weights, vector, *part, context) for vector, part in zip(vectors, parts, strict=True)]
    expected = torch.stack(rows)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    down = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2)).double()
    (found * down).sum().backward()
    (expected * down).sum().backward()
    pairs = [(name, value.grad, weights[name].grad) for name, value in built.named_parameters()]
    pairs += [(name, one.grad, apart[name].grad) for name, one in (history | target).items() if one.requires_grad]
    for name, gradient, wanted in pairs:
        assert gradient.numel(), name  # weights without values have no state that TorchRec can save
        assert (gradient - wanted).abs().max() <= 1e-10 * wanted.abs().max(), name


def test_neighbours_and_their_lengths_change_nothing():
    """A sample alone is the same as among longer ones, and under dropout in any part of a batch."""
    built, inputs = random_network(config(dropout=0.4)).double(), samples()
    taken = samples_of(built)

    def of(rows):
        taken.begin(3, 7, torch.arange(rows.start, rows.stop), torch.ones(rows.stop - rows.start))
        return built(*read(*inputs, rows))

    together = of(slice(0, len(LENGTHS)))
    alone = torch.cat([of(slice(row, row + 1)) for row in range(len(LENGTHS))])
    torch.testing.assert_close(alone, together, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(together, built.eval()(*read(*inputs)))


def test_parts_that_are_computed_again_change_no_bit():
    """With dropout, and in several groups of samples, whose masks backward has to draw again."""
    losses, gradients = [], []
    for recomputed in (False, True):
        built, inputs = random_network(config(dropout=0.4)).double(), samples()
        if recomputed:
            assert recompute_parts(built)
        samples_of(built).begin(3, 7, torch.arange(len(LENGTHS)), torch.ones(len(LENGTHS)))
        found = built(*read(*inputs))
        samples_of(built).begin(
            3, 8, torch.arange(len(LENGTHS)), torch.ones(len(LENGTHS))
        )  # as another microbatch would
        found.square().sum().backward()
        losses.append(found)
        gradients.append([weight.grad for weight in built.parameters()])
    assert torch.equal(*losses)
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


def test_the_published_size_has_as_many_dense_weights():
    context = [f"context{number}" for number in range(8)]
    whole = config(512, 4086, context, attention_heads=4, attention_blocks=3)
    whole = whole.model_copy(update={"data": whole.data.model_copy(update={"labels": ["heard"], "dense": {}})})
    built = build_model(whole.data, whole.model, {"heard": 1}, torch.device("cpu")).network
    assert sum(weight.numel() for weight in built.parameters()) == 15_243_057


def test_without_a_history_the_candidate_and_its_context_are_left():
    built = random_network(config(history=None)).double()
    vectors, _, target = samples()
    del target["now"]
    found = built(vectors, [Sequence(one[:, None], torch.ones(len(LENGTHS))) for one in target.values()], {})
    rows = [{name: one[row] for name, one in target.items()} for row in range(len(LENGTHS))]
    weights, empty = dict(built.named_parameters()), {"past": []}
    expected = [logits(weights, vector, empty, row, CONTEXT) for vector, row in zip(vectors, rows, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-10, atol=1e-10)
