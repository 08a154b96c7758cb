"""Next-item models trained at every position: each state sees only what is before it, and each has its loss."""

from functools import partial

import pytest
import torch
from random_network import random_network
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.config.data import LaneRows
from trainer.config.root import Config
from trainer.models.losses import EarlierPairs, LossOverSamples, sampled_softmax
from trainer.models.sequence_model import EARLIER_PAIRS, ROWS_OF_ITEMS

DIMENSION, LONGEST, ITEMS = 4, 12, 9
LENGTHS = [3, 0, 1, LONGEST, 2, 9, 11]
SHARED = {"rows": ITEMS, "table": "items", "pooling": "none"}
TIMES = {"rows": 2**31 - 1, "pooling": "raw"}


def network(name, **keys):
    sparse = {"past": SHARED | {"max_ids": LONGEST}, "item": SHARED | {"max_ids": 1}}
    model = {"name": name, "target": "item", "history": "past", "item_features": ["item"], "every_position": True}
    if name == "hstu":
        sparse |= {"at": TIMES | {"max_ids": LONGEST}, "now": TIMES | {"max_ids": 1}}
        model |= {"history_times": "at", "target_time": "now"}
    data = {"labels": ["click"], "groups": ["item"], "sparse": sparse}
    data["catalogue"] = {"items": ["items.parquet"], "id": "item", "negatives": 2}
    model |= {"embedding_dim": DIMENSION, "attention_blocks": 2} | keys
    tasks = {"next": {"label": "click", "loss": "sampled_softmax", "group": "item"}}
    return random_network(Config.model_validate({"data": data, "model": model, "tasks": tasks}))


def jagged(values, lengths):
    return JaggedTensor(values, lengths=torch.tensor(lengths).int())


@pytest.mark.parametrize("name", ["sasrec", "hstu"])
@pytest.mark.parametrize("keys", [{}, {"normalize": False}, {"item_bias": True}])
def test_a_position_is_the_end_of_a_shorter_history(name, keys):
    """Its state is that of a sample whose history ends there, and whose item is the next one."""
    built, random = network(name, **keys), torch.Generator().manual_seed(0)
    table = torch.randn(ITEMS, DIMENSION, generator=random)
    past, item = (torch.randint(0, ITEMS, (n,), generator=random) for n in (sum(LENGTHS), len(LENGTHS)))
    item_lengths = [1] * (len(LENGTHS) - 1) + [0]  # the last target is null
    steps = torch.randint(0, 30_000, (sum(LENGTHS),), generator=random).split(LENGTHS)
    at = torch.cat([1_700_000_000 - one.flip(0).cumsum(0).flip(0) for one in steps]).int()
    now = torch.full((len(LENGTHS),), 1_700_000_000).int()

    def inputs(past, lengths, item, item_lengths, at, now):
        history, target = {"past": jagged(table[past], lengths)}, [jagged(table[item], item_lengths)]
        if name == "hstu":
            history["at"] = jagged(at, lengths)
            target.append(jagged(now, [1] * len(now)))
        return torch.empty(len(lengths), 0), target, history

    rows = jagged(item[:-1].int(), item_lengths), jagged(past.int(), LENGTHS)
    found = built(*inputs(past, LENGTHS, item[:-1], item_lengths, at, now), rows)
    built.eval()
    ends = built(*inputs(past, LENGTHS, item[:-1], item_lengths, at, now), rows)
    assert [*ends] == ["next"]
    torch.testing.assert_close(found["next"], ends["next"])
    assert found[EARLIER_PAIRS].shape == (len(LENGTHS), LONGEST - 1, 2, DIMENSION)
    weight = built.interest.positions.weight.data.clone() if name == "sasrec" else None
    if "item_bias" in keys:
        assert (ends["next"][:, 0, 0] == 1).all()
        assert torch.equal(ends["next"][:-1, 1, 0], table[item[:-1], 0])
    for sample, (one, time) in enumerate(zip(past.split(LENGTHS), at.split(LENGTHS), strict=True)):
        known = [int(item[sample]) if item_lengths[sample] else -1, *one[1:].tolist()]
        assert found[ROWS_OF_ITEMS][sample].tolist() == known + [-1] * (LONGEST - len(known))
        for place in range(1, len(one)):
            if weight is not None:  # whose positions count from the end of the whole history
                built.interest.positions.weight.data = weight.roll(place - len(one), 0)
            shorter = built(
                *inputs(one[:place], [place], one[place : place + 1], [1], time[:place], time[place : place + 1])
            )
            torch.testing.assert_close(found[EARLIER_PAIRS][sample, place - 1], shorter["next"][0])


@pytest.mark.parametrize(("log_q", "without_had"), [(False, False), (True, False), (True, True)])
def test_the_loss_is_the_mean_over_all_positions(log_q, without_had):
    """In float64, against a loop over samples, positions and negatives, with gradients."""
    rows, lanes, positions = LaneRows(samples=3, drawn=4, hard=0), 2, 5
    random, count = torch.Generator().manual_seed(0), lanes * 7
    pairs = torch.randn(count, 1 + positions, 2, DIMENSION, generator=random).double().requires_grad_()
    group = torch.randint(0, ITEMS, (count, 1 + positions), generator=random)
    number = torch.randint(0, positions + 1, (count,), generator=random)
    group[:, 1:][torch.arange(positions) >= number[:, None]] = -1
    label, odds = torch.rand(count, generator=random).double(), torch.rand(ITEMS, generator=random).double()
    place = torch.arange(count) % rows.total
    present, log_odds = (place < rows.samples) & (torch.arange(count) != 1), odds.log()[group[:, 0]]
    loss = LossOverSamples(partial(sampled_softmax, rows=rows, log_q=log_q, temperature=0.5), rows.total)
    earlier = EarlierPairs(pairs[:, 1:], group[:, 1:])
    had = torch.rand(count, ITEMS, generator=random) < (0.4 if without_had else 0)

    def of_units(items):
        return torch.stack([had.view(lanes, -1, ITEMS)[lane][:, items[lane]] for lane in range(lanes)])

    options = {"had": of_units} if without_had else {}
    found = loss(pairs[:, 0], label, group[:, 0], present, log_odds, earlier=earlier, **options)
    expected = torch.zeros(count).double()
    for row in range(count):
        if not present[row]:
            continue
        first, each = row // rows.total * rows.total, []
        for at in range(1 + int(number[row])):
            (query, item), own = pairs[row, at], group[row, at]
            total = positive = torch.exp(query @ item / 0.5)
            for other in range(first + rows.samples, first + rows.total):
                if group[other, 0] != own and not had[row, group[other, 0]]:
                    often = rows.drawn * odds[group[other, 0]] if log_q else 1
                    total = total + torch.exp(query @ pairs[other, 0, 1] / 0.5) / often
            each.append(torch.log(total / positive))
        expected[row] = label[row] * torch.stack(each).mean()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    (of_found,), (of_expected,) = (torch.autograd.grad(one.square().sum(), pairs) for one in (found, expected))
    torch.testing.assert_close(of_found, of_expected, rtol=1e-10, atol=1e-12)
