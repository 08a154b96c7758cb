"""A sharded run computes the same under every plan and on any number of ranks.

By default each plan has two of the optimizers; `--all` takes every pair. `make test` has three of the plans.
"""

from itertools import combinations, cycle, product

import numpy as np
import pytest
import torch
from jobs import config, launch, launch_rounds, losses, saved_tensors, write_rows
from plain_model import plain_model
from torch import nn
from torchrec.distributed.types import ShardingEnv

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.plan.sharding import Unwrapped

PLANS = [
    "table_wise",
    "row_wise",
    "data_parallel",
    "table_row_wise",
    "column_wise",
    "table_column_wise",
    "grid_shard",
]
OPTIMIZERS = ["sgd", "adagrad", "rowwise_adagrad"]
EPS = 1e-4  # with a smaller one, Adagrad turns rounding of gradients near zero into steps of full size
STEPS = 24
pytestmark = pytest.mark.few(3, "the other plans")
SIZES = [5, 0, 150, 1, 60, 40, 300]  # very unequal, one empty


def planned(data, kind, **changes):
    mode = {"planner__mode": "data_parallel"} if kind == "data_parallel" else {"planner__sharding_types": [kind]}
    return config(data, **mode, **changes)


@pytest.fixture(scope="module")
def runs(cells, tmp_path_factory):
    """Plans on 1, 2 and 4 ranks: two epochs and a bit."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_rows(folder / "data", SIZES)
    rounds = [
        (
            ranks,
            [
                {"config": planned(data, kind, train__steps=STEPS), "out": str(folder / f"{kind}-{ranks}")}
                for kind in dict.fromkeys(["table_wise", *cells("kind")])
            ],
        )
        for ranks in (1, 2, 4)
    ]
    launch_rounds(rounds, folder)
    return folder


def test_a_dense_part_made_elsewhere_moves_to_the_device_of_its_rank():
    """As TorchRec's cross network, which it makes on the CPU."""
    wrapped = nn.Module()
    wrapped._dmp_wrapped_module = nn.Linear(2, 2)
    Unwrapped().wrap(wrapped, ShardingEnv.from_local(world_size=1, rank=0), torch.device("meta"))
    assert {parameter.device.type for parameter in wrapped.parameters()} == {"meta"}


@pytest.mark.parametrize("kind", PLANS)
def test_losses_do_not_depend_on_the_number_of_ranks(runs, kind):
    alone = losses(runs / f"{kind}-1")
    assert len(alone) == STEPS
    assert np.mean(alone[-8:]) < np.mean(alone[:8])
    for ranks in (2, 4):
        np.testing.assert_allclose(losses(runs / f"{kind}-{ranks}"), alone, rtol=1e-5)


@pytest.mark.parametrize("kind", PLANS)
def test_losses_do_not_depend_on_the_plan(runs, kind):
    np.testing.assert_allclose(losses(runs / f"{kind}-2"), losses(runs / "table_wise-1"), rtol=1e-5)


@pytest.mark.parametrize("kind", PLANS)
def test_the_plan_is_the_one_asked_for(runs, kind):
    text = (runs / f"{kind}-4" / "plan.json").read_text()
    assert text.count(f'"sharding_type": "{kind}"') == 6


def pairs(whole):
    """Returns plans with optimizers."""
    if whole:
        return [*product(PLANS, OPTIMIZERS)]
    return [(plan, name) for plan, two in zip(PLANS, cycle(combinations(OPTIMIZERS, 2))) for name in two]


MATRIX = "plan, optimizer", pairs


def optimized_by(data, kind, name):
    options = {"name": name, "learning_rate": 0.1} | ({} if name == "sgd" else {"eps": EPS})
    return planned(data, kind, optimizer__sparse=options)


@pytest.fixture(scope="module")
def optimized(matrix, tmp_path_factory):
    """Plans on 2 ranks for 20 steps, with optimizers that a CPU has."""
    folder = tmp_path_factory.mktemp("optimized")
    data = write_rows(folder / "data", SIZES)
    jobs = [
        {
            "config": optimized_by(data, kind, name),
            "out": str(folder / f"{kind}-{name}"),
        }
        for kind, name in matrix
    ]
    launch(jobs, 2, folder)
    return folder, data


class RowWiseAdagrad(torch.optim.Optimizer):
    """Adagrad with an accumulator per row and column shard: the mean of the squared gradient, in plain torch."""

    def __init__(self, parameters, lr, eps, shards):
        super().__init__(parameters, {"lr": lr, "eps": eps, "shards": shards})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                grad = p.grad.view(len(p), group["shards"], -1)
                total = self.state[p].setdefault("sum", torch.zeros(len(p), group["shards"], 1, dtype=p.dtype))
                total += grad.square().mean(2, keepdim=True)
                p -= (group["lr"] * grad / (total.sqrt() + group["eps"])).view_as(p)


def reference(data, kind, name):
    """The same training in one process, float64, plain autograd, nothing of the sharded path in it."""
    settings = Config.model_validate(optimized_by(data, kind, name))
    model = plain_model(settings).double()
    sparse, dense = [], []
    for parameter_name, parameter in model.named_parameters():
        (sparse if "embedding_bags" in parameter_name else dense).append(parameter)
    shards = 2 if kind in ("column_wise", "table_column_wise", "grid_shard") else 1
    optimizers = [
        {
            "sgd": lambda: torch.optim.SGD(sparse, 0.1),
            "adagrad": lambda: torch.optim.Adagrad(sparse, 0.1, eps=EPS),
            "rowwise_adagrad": lambda: RowWiseAdagrad(sparse, 0.1, EPS, shards),
        }[name](),
        torch.optim.SGD(dense, settings.optimizer.dense.learning_rate),
    ]
    files = find_files("data.train", settings.data.train, settings.data)
    loader = Loader(files, settings.data, Lanes(files.rows, 8, 64), 0, 1, settings.train.seed, True)
    for batch in loader.batches(0, 20):
        logits = model(batch.dense.double(), batch.sparse)
        each = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.double(), reduction="none")[:, 0]
        real = batch.weights.double()
        loss = (each * real).sum() / real.sum()
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    return model.state_dict()


def test_a_sharded_model_equals_plain_autograd(optimized, plan, optimizer):
    folder, data = optimized
    saved = saved_tensors(folder / f"{plan}-{optimizer}", 20)
    expected = reference(data, plan, optimizer)
    weights = {key.removeprefix("model.model."): value for key, value in saved.items() if key.startswith("model.")}
    assert weights.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(weights[key].double(), value, rtol=1e-5, atol=1e-5, err_msg=key)
