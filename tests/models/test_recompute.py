"""Parts that are computed again in backward: the bits of a step stay, and less is kept."""

from itertools import product

import pytest
import torch
from jobs import config, launch_rounds, saved_tensors, write_rows
from sequences import sequence_config
from torchrec.sparse.jagged_tensor import JaggedTensor

from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.models.builder import build_model_with_loss
from trainer.models.hidden_layers import tower
from trainer.models.pooled import PooledModel, vector_width
from trainer.models.step_samples import samples_of
from trainer.plan.dense_part import dense_part

LENGTHS, COLUMNS, CPU = torch.tensor([5, 0, 3, 5, 1, 2, 4, 5]).int(), 16, torch.device("cpu")
MORE = {"dropout": 0.3, "normalization": "layer", "activation": "gelu"}


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
    if model == "bst":
        history["at"] = sequence(LENGTHS)
        target.append(sequence(each))
    samples.begin(3, 7, torch.arange(len(each)), each)
    loss = network(torch.randn(len(LENGTHS), 2 + COLUMNS, generator=random), target, history).square().sum()
    samples.begin(3, 8, torch.arange(len(each)), each)  # as the next microbatch does; not for what is computed again
    for _ in range(backwards):  # as many as there are tasks that model.task_weighting compares
        loss.backward(retain_graph=True)
    return [weight.grad for weight in network.parameters()]


@pytest.mark.parametrize("backwards", [1, 2])
@pytest.mark.parametrize("model", ["hstu", "sasrec", "bst"])
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


def tower_alone(inputs):
    """A model whose network is the tower itself, which TorchRec's pipeline meets as it traces the model."""
    return PooledModel(inputs, tower(inputs, vector_width(inputs), inputs.config.over_layers, 1))


def pooled(data, name, recompute, **changes):
    model = {"name": name, "embedding_dim": 16, "over_layers": [32, 24], **MORE}
    if name == "mmoe":
        model = {"name": name, "embedding_dim": 16, "experts": {"shared": 3, "layers": [32, 24]}, **MORE}
    return config(data, model=model, train__recompute=recompute, train__micro_batches=2, train__steps=4, **changes)


def test_trained_towers_have_the_same_bits(tmp_path):
    data, names = write_rows(tmp_path / "data", [300]), ("deepfm", "dlrm", "mmoe", f"{__name__}:tower_alone")
    cases = [*((name, 1) for name in names), ("mmoe", 2)]
    jobs: dict[int, list[dict]] = {1: [], 2: []}
    for (at, (name, ranks)), recompute in product(enumerate(cases), (False, True)):
        tree = pooled(data, name, recompute)
        jobs[ranks].append({"config": tree, "out": str(tmp_path / f"{at}-{recompute}")})
    launch_rounds([*jobs.items()], tmp_path)
    for at, case in enumerate(cases):
        plain, again = (saved_tensors(tmp_path / f"{at}-{recompute}", 4) for recompute in (False, True))
        assert [part for part in plain if not torch.equal(plain[part], again[part])] == [], case


@pytest.mark.parametrize(
    ("name", "keys", "most"),
    [
        # Of its only tower, what comes out of each layer is kept, and what is between them is not.
        ("deepfm", {"over_layers": [1024] * 4, **MORE}, 0.7),
        # Of the experts, what comes out of the last layer, and one of them whole in backward.
        ("mmoe", {"experts": {"shared": 8, "layers": [512, 64]}}, 0.4),
        ("mmoe", {"experts": {"shared": 8, "layers": [512, 64]}, **MORE}, 0.3),
    ],
)
def test_the_plan_counts_less_memory_of_towers(name, keys, most):
    plain, again = (
        dense_part(
            Config.model_validate(
                config(
                    "data",
                    model={"name": name, "embedding_dim": 16, **keys},
                    data__global_batch_size=8192,
                    train__recompute=recompute,
                )
            ),
            1,
        )
        for recompute in (False, True)
    )
    assert again.memory.activations < most * plain.memory.activations
    assert again.work.flops > 1.2 * plain.work.flops


def test_a_model_without_such_parts_is_refused():
    tree = config("data", train__recompute=True, model={"name": "wide_deep", "over_layers": []})
    with pytest.raises(InputError, match=r"train.recompute is true, but model.name 'wide_deep' has no hidden layers"):
        build_model_with_loss(Config.model_validate(tree), CPU, None)
