"""Parts that are computed again in backward: the bits of a step stay, and less is kept."""

import pytest
import torch
from sequences import sequence_config
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.builder import build_model_with_loss
from trainer.models.step_samples import samples_of
from trainer.plan.dense_part import dense_part

LENGTHS, COLUMNS, CPU = torch.tensor([5, 0, 3, 5, 1, 2, 4, 5]).int(), 16, torch.device("cpu")


def built(model, recompute, **changes):
    tree = sequence_config("data", model, train__recompute=recompute, model__dropout=0.3, **changes)
    torch.manual_seed(0)
    return build_model_with_loss(Config.model_validate(tree), CPU, None).model


def gradients(model, recompute, backwards):
    """Returns the gradients of all dense weights after the same loss went back so often."""
    network, random = built(model, recompute).network, torch.Generator().manual_seed(0)

    def sequence(lengths, *columns):
        return JaggedTensor(torch.randn(int(lengths.sum()), *columns, generator=random), lengths=lengths)

    each, samples = torch.ones_like(LENGTHS), samples_of(network)
    history, target = {"history": sequence(LENGTHS, COLUMNS)}, [sequence(each, COLUMNS)]
    if model == "hstu":
        history |= {"rated": sequence(LENGTHS, COLUMNS), "rated.weights": sequence(LENGTHS), "at": sequence(LENGTHS)}
        target.append(sequence(each))
    samples.begin(3, 7, torch.arange(len(each)), each)
    loss = network(torch.randn(len(LENGTHS), 2 + COLUMNS, generator=random), target, history).square().sum()
    samples.begin(3, 8, torch.arange(len(each)), each)  # as the next microbatch does; not for what is computed again
    for _ in range(backwards):  # as many as there are tasks that model.task_weighting compares
        loss.backward(retain_graph=True)
    return [weight.grad for weight in network.parameters()]


@pytest.mark.parametrize("backwards", [1, 2])
@pytest.mark.parametrize("model", ["hstu", "sasrec"])
def test_no_bit_changes(model, backwards):
    plain, again = (gradients(model, recompute, backwards) for recompute in (False, True))
    assert len(plain) > 10
    assert all(torch.equal(one, other) for one, other in zip(plain, again, strict=True))


@pytest.mark.more("traces whole steps")
@pytest.mark.parametrize("model", ["hstu", "sasrec"])
@pytest.mark.slow
def test_the_plan_counts_less_memory_and_more_work(model):
    length, found = 700, []
    for recompute in (False, True):
        more = {"data__global_batch_size": 16, "model__embedding_dim": 64, "model__attention_blocks": 6}
        tree = sequence_config("data", model, train__recompute=recompute, **more)
        for name in ("history", "rated", "at") if model == "hstu" else ("history",):
            tree["data"]["sparse"][name] |= {"max_ids": length, "hotness": 0.7 * length}
        found.append(dense_part(Config.model_validate(tree), 1))
    plain, again = found
    assert again.memory.activations < 0.6 * plain.memory.activations
    assert 1.2 < again.work.batched_flops / plain.work.batched_flops < 1.5


def test_a_model_without_such_parts_is_refused():
    with pytest.raises(InputError, match=r"train.recompute is true, but model.name 'din' has no part that can be"):
        built("din", True)
