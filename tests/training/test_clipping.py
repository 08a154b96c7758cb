"""Clipped and penalized gradients are those of one process in float64, on any number of ranks, under any plan."""

import json
from functools import cache

import numpy as np
import pytest
import torch
from jobs import config, launch_rounds, numbers_of_ranks, saved_tensors, write_rows
from plain_model import plain_model
from torch import nn

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

STEPS = 10
MATRIX = "ranks", numbers_of_ranks
PLANS = {1: ["table_wise"], 2: ["row_wise"], 4: ["column_wise"]}
LIMITS = {
    "norm": {"optimizer__dense__max_norm": 0.05},
    "norm 3": {"optimizer__dense__max_norm": 0.05, "optimizer__dense__norm_type": 3.0},
    "value": {"optimizer__dense__max_value": 0.005},
    "tables": {"optimizer__sparse__max_gradient": 2e-4},
    "tables, replicated": {"optimizer__sparse__max_gradient": 2e-4, "planner__mode": "data_parallel"},
    "l2": {"optimizer__sparse__embedding_l2": 0.1},
    "l2, replicated": {"optimizer__sparse__embedding_l2": 0.1, "planner__mode": "data_parallel"},
    "all, scaled, in parts": {
        "optimizer__dense__max_norm": 0.05,
        "optimizer__sparse__embedding_l2": 0.1,
        "optimizer__sparse__max_gradient": 2e-4,
        "train__loss_scale": {"initial": 1024.0},
        "train__micro_batches": 4,
    },
}


def settings(data, changes, ranks=1):
    tree = config(data, train__steps=STEPS, planner__sharding_types=PLANS[ranks], **changes)
    tree["optimizer"]["sparse"] |= {"learning_rate": 50.0}
    tree["optimizer"]["dense"] |= {"learning_rate": 2.0}
    tree["data"]["sparse"]["s1"]["pooling"] = "mean"
    return tree


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows"), [130, 90])


@pytest.fixture(scope="module")
def runs(matrix, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("clipping")
    launch_rounds(
        [
            (
                ranks,
                [
                    {"config": settings(data, changes, ranks), "out": str(folder / f"{name}-{ranks}")}
                    for name, changes in LIMITS.items()
                ],
            )
            for ranks in matrix
        ],
        folder,
    )
    return folder


def clamp_gradient_of_pooled(limit):
    def hook(_, __, pooled):
        pooled.values().register_hook(lambda gradient: gradient.clamp(-limit, limit))

    return hook


def reference(tree):
    """Returns the weights and the gradient norms of plain autograd, with torch's own clipping."""
    settings = Config.model_validate(tree)
    model = plain_model(settings).double()
    tables = model.sparse_arch.embedding_bag_collection
    limits = settings.optimizer.dense
    if settings.optimizer.sparse.max_gradient:
        tables.register_forward_hook(clamp_gradient_of_pooled(settings.optimizer.sparse.max_gradient))
    dense = [weight for name, weight in model.named_parameters() if "embedding_bags" not in name]
    groups = [
        {"params": list(tables.parameters()), "lr": settings.optimizer.sparse.learning_rate},
        {"params": dense, "lr": limits.learning_rate},
    ]
    optimizer, norms, pooled = torch.optim.SGD(groups), [], []
    tables.register_forward_hook(lambda _, __, found: pooled.append(found.values()))
    files = find_files("data.train", settings.data.train, settings.data)
    loader = Loader(files, settings.data, Lanes(files.rows, 8, 64), 0, 1, settings.train.seed, True)
    for batch in loader.batches(0, STEPS):
        logits = model(batch.dense.double(), batch.sparse)
        each = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.double(), reduction="none")[:, 0]
        optimizer.zero_grad()
        squares = pooled.pop()[batch.weights > 0].square().sum()
        penalty = settings.optimizer.sparse.embedding_l2 / 2 * squares / settings.data.global_batch_size
        ((each * batch.weights).sum() / batch.weights.sum() + penalty).backward()
        norms.append(sum(weight.grad.abs().pow(limits.norm_type).sum() for weight in dense) ** (1 / limits.norm_type))
        if limits.max_norm:
            for weight in dense:
                weight.grad *= min(1.0, limits.max_norm / norms[-1])
        if limits.max_value:
            for weight in dense:
                weight.grad.clamp_(-limits.max_value, limits.max_value)
        optimizer.step()
    return model.state_dict(), [norm.item() for norm in norms]


def unlimited(tree):
    tree["optimizer"]["dense"] = {"name": "sgd", "learning_rate": tree["optimizer"]["dense"]["learning_rate"]}
    tree["optimizer"]["sparse"] = {"name": "sgd", "learning_rate": tree["optimizer"]["sparse"]["learning_rate"]}
    return tree


@pytest.fixture(scope="module")
def expected(data):
    """A function that returns the weights and norms of a limit, and the weights without it; computed once."""
    return cache(
        lambda limit: (
            *reference(settings(data, LIMITS[limit])),
            reference(unlimited(settings(data, LIMITS[limit])))[0],
        )
    )


@pytest.mark.parametrize("limit", LIMITS)
def test_weights_and_norms_are_those_of_one_process(runs, expected, limit, ranks):
    weights, norms, without = expected(limit)
    out = runs / f"{limit}-{ranks}"
    found = {name.removeprefix("model.model."): value for name, value in saved_tensors(out, STEPS).items()}
    for name, value in weights.items():
        np.testing.assert_allclose(found[name].double(), value, rtol=1e-5, atol=1e-5, err_msg=name)
    assert any((without[name] - value).abs().max() > 1e-2 for name, value in weights.items())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    reported = [line["gradient_norm"] for line in lines if "gradient_norm" in line]
    np.testing.assert_allclose(reported, norms if "optimizer__dense" in str(LIMITS[limit]) else [], rtol=1e-4)
