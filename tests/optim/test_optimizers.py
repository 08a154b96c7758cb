"""Optimizers of a sharded model: options per name, learning rates by step, and which parameters each one updates."""

import pytest
import torch
from jobs import config

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.core.distributed import local_shards_of, process_group
from trainer.core.errors import InputError
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.models.embeddings import table_of_weight
from trainer.optim.dense_optimizers import DENSE
from trainer.training.sharded_model import build_sharded_model

MOMENTS = {"eps": 1e-3, "beta1": 0.8, "beta2": 0.9}
BETAS = {"betas": (0.8, 0.9), "eps": 1e-3}
REPLICATED = {"s0": {"sharding_types": ["data_parallel"]}, "s1": {"sharding_types": ["table_wise"]}}


@pytest.fixture(scope="module")
def context():
    with process_group() as context:
        yield context


@pytest.fixture
def build(rows, context):
    """Builds the sharded model of a configuration, and the first batch for it."""

    def build(**changes):
        settings = Config.model_validate(config(rows, **changes))
        files = find_files("data.train", settings.data.train, settings.data)
        lanes = Lanes(files.rows, 8, settings.data.global_batch_size)
        batch = next(Loader(files, settings.data, lanes, 0, 1, 0, False).batches(0, 1))
        return build_sharded_model(settings, context), batch.to(context.device)

    return build


def take_step(model, batch, step):
    """Takes an optimizer step; returns the dense parameters and their gradients as they were before the update."""
    model.optimizers.set_rates(step)
    model.optimizers.combined.zero_grad()
    model.model(batch)[0].backward()
    before = {
        name: (parameter.detach().clone(), parameter.grad.clone())
        for name, parameter in model.model.named_parameters()
        if table_of_weight(name) is None
    }
    model.optimizers.combined.step()
    return before


def weights(model):
    """Returns copies of all weights by name; on one rank, local shards are whole tables."""
    return {
        name: torch.cat([shard.detach().clone() for shard in local_shards_of(value)])
        for name, value in model.weights().items()
    }


@pytest.mark.parametrize(
    ("name", "options", "plain", "same"),
    [
        ("sgd", {"momentum": 0.7}, torch.optim.SGD, {"momentum": 0.7}),
        ("sgd", {"momentum": 0.7, "nesterov": True}, torch.optim.SGD, {"momentum": 0.7, "nesterov": True}),
        ("adagrad", {"eps": 1e-3}, torch.optim.Adagrad, {"eps": 1e-3}),
        ("adadelta", {"eps": 1e-3, "rho": 0.8}, torch.optim.Adadelta, {"eps": 1e-3, "rho": 0.8}),
        ("rmsprop", {"eps": 1e-3, "alpha": 0.8}, torch.optim.RMSprop, {"eps": 1e-3, "alpha": 0.8}),
        ("rmsprop", {"eps": 1e-3, "momentum": 0.7}, torch.optim.RMSprop, {"eps": 1e-3, "momentum": 0.7}),
        ("adam", MOMENTS, torch.optim.Adam, BETAS),
        ("adam", {"amsgrad": True}, torch.optim.Adam, {"amsgrad": True}),
        ("adamw", MOMENTS, torch.optim.AdamW, BETAS),
        ("adamw", {"amsgrad": True}, torch.optim.AdamW, {"amsgrad": True}),
        ("sgd", {"fused": True}, torch.optim.SGD, {"fused": True}),
        ("adagrad", {"eps": 1e-3, "fused": True}, torch.optim.Adagrad, {"eps": 1e-3, "fused": True}),
        ("adam", {"fused": True}, torch.optim.Adam, {"fused": True}),
        ("adamw", {"fused": True}, torch.optim.AdamW, {"fused": True}),
        ("adamax", MOMENTS, torch.optim.Adamax, BETAS),
        ("radam", MOMENTS, torch.optim.RAdam, BETAS),
        ("torch.optim:AdamW", {"arguments": {"betas": [0.8, 0.9], "eps": 1e-3}}, torch.optim.AdamW, BETAS),
    ],
)
def test_the_dense_part_is_updated_as_by_torch(build, name, options, plain, same):
    # Like torch's own default, unless a case sets it.
    options = {"fused": False, "learning_rate": 0.1, "weight_decay": 0.05} | options
    model, batch = build(optimizer__dense={"name": name, **options})
    expected, optimizer = {}, None
    for step in (1, 2):
        before = take_step(model, batch, step)
        if optimizer is None:
            expected = {name: torch.nn.Parameter(value) for name, (value, _) in before.items()}
            optimizer = plain(expected.values(), lr=0.1, weight_decay=0.05, **same)
        for name, (_, gradient) in before.items():
            expected[name].grad = gradient
        optimizer.step()
    found = dict(model.model.named_parameters())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name, rtol=0, atol=0)


def test_parts_are_updated_by_optimizers_of_their_own(build):
    parts = {
        "top": {"weights": [r"regex:over_arch\.model\.\d\.(?!.*bias).*"], "name": "sgd", "momentum": 0.7},
        "biases": {"weights": ["*.bias"], "weight_decay": 0.0, "beta1": 0.5},
    }
    dense = {"name": "adamw", "learning_rate": 0.1, "weight_decay": 0.05, "eps": 1e-3, "beta2": 0.9, "parts": parts}
    model, batch = build(optimizer__dense=dense)
    model.optimizers.create_dense_state()
    expected, optimizers, groups = {}, [], {}
    for step in (1, 2, 3):
        before = take_step(model, batch, step)
        if not optimizers:
            expected = {name: torch.nn.Parameter(value) for name, (value, _) in before.items()}
            groups = {"biases": [name for name in expected if name.endswith(".bias")]}
            groups["top"] = [name for name in expected if "over_arch" in name and name not in groups["biases"]]
            groups["others"] = [name for name in expected if name not in [*groups["biases"], *groups["top"]]]
            of = {group: [expected[name] for name in names] for group, names in groups.items()}
            optimizers = [  # fused, as torch has such kernels for a CPU
                torch.optim.SGD(of["top"], lr=0.1, momentum=0.7, weight_decay=0.05, fused=True),
                torch.optim.AdamW(of["biases"], lr=0.1, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.0, fused=True),
                torch.optim.AdamW(of["others"], lr=0.1, betas=(0.9, 0.9), eps=1e-3, weight_decay=0.05, fused=True),
            ]
        for name, (_, gradient) in before.items():
            expected[name].grad = gradient
        for optimizer in optimizers:
            optimizer.step()
    assert all(groups.values())
    found = dict(model.model.named_parameters())
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=name, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_every_parameter_has_one_optimizer(build, name):
    model, batch = build(optimizer__sparse__name=name, optimizer__dense__name="adamw", planner__tables=REPLICATED)
    before = weights(model)
    take_step(model, batch, 1)
    fused = {table_of_weight(parameter) for parameter in model.optimizers.tables.fused.params}
    assert fused == {f"s{number}" for number in range(1, 6)}
    assert {table_of_weight(parameter) for parameter, _ in model.optimizers.tables.replicated_state()} <= {"s0"}
    dense = {parameter for parameter, _ in model.optimizers.dense_state()}
    assert {table_of_weight(parameter) for parameter in dense} == {None}
    assert len(dense) + 6 == len(before)
    for parameter, value in weights(model).items():
        assert not torch.equal(value, before[parameter]), parameter


def moved(build, step, **changes):
    """Returns how far a step moves each weight, SGD everywhere and one table replicated."""
    model, batch = build(planner__tables=REPLICATED, **changes)
    before = weights(model)
    take_step(model, batch, step)
    return {table_of_weight(name) or "dense": (value - before[name]).norm() for name, value in weights(model).items()}


def test_each_part_follows_its_own_schedule(build):
    full = moved(build, 1)
    changes = {
        "optimizer__sparse__schedule": {"warmup_steps": 4},
        "optimizer__dense__schedule": {"decay": "custom:halved"},
    }
    found = moved(build, 1, **changes)
    for part, distance in full.items():
        assert distance > 0, part
        assert found[part] / distance == pytest.approx(0.5 if part == "dense" else 0.25, rel=1e-4), part


@pytest.mark.parametrize("name", sorted(DENSE))
def test_the_state_that_optimizers_are_created_with_changes_neither_weights_nor_steps(build, name):
    changes = {"optimizer__dense": {"name": name, "weight_decay": 0.1}, "planner__tables": REPLICATED}
    (model, batch), (other, _) = build(**changes), build(**changes)
    before = weights(model)
    model.optimizers.create_dense_state()
    assert all(torch.equal(value, before[weight]) for weight, value in weights(model).items())
    for step in (1, 2):
        take_step(model, batch, step)
        take_step(other, batch, step)
    for weight, value in weights(model).items():
        assert not torch.equal(value, before[weight]), weight
        assert torch.equal(value, weights(other)[weight]), weight


@pytest.mark.parametrize("section", ["sparse", "dense"])
def test_an_unknown_decay_is_refused_at_once(build, section):
    with pytest.raises(InputError, match=f"^optimizer.{section}.schedule.decay is 'cosinus'; did you mean 'cosine'"):
        build(**{f"optimizer__{section}__schedule": {"decay": "cosinus"}})
