"""Parts of the dense weights with optimizers and rates of their own, frozen ones, and resumes with every optimizer."""

import math

import numpy as np
import pytest
import torch
from jobs import config, launch_rounds, losses, numbers_of_ranks, saved_tensors, write_rows
from plain_model import plain_model
from torch import nn

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes

pytestmark = pytest.mark.more("test_nonfinite.py trains parts, too")

STEPS, EPOCH, STOP = 12, 4, 5
FROZEN = "dense_arch.model._mlp.1._linear.weight"
REPLICATED = {"s0": {"sharding_types": ["data_parallel"]}}
MATRIX = "ranks", numbers_of_ranks

RESUMED = {
    "nesterov": {"name": "sgd", "momentum": 0.9, "nesterov": True},
    "adagrad": {"name": "adagrad"},
    "adadelta": {"name": "adadelta", "learning_rate": 1.0, "eps": 1e-6},
    "rmsprop": {"name": "rmsprop", "momentum": 0.5},
    "adam": {"name": "adam", "amsgrad": True},
    "adamw": {"name": "adamw", "weight_decay": 0.1, "amsgrad": True},
    "fused": {"name": "adam", "fused": True},
    "adamax": {"name": "adamax"},
    "radam": {"name": "radam"},
    "own": {"name": "torch.optim:Adafactor", "arguments": {"d": 2.0}},
    "classes": {
        "name": "adamw",
        "parts": {
            "top": {"weights": [r"regex:over_arch\.model\.\d\.(?!.*bias).*"], "name": "sgd", "momentum": 0.9},
            "biases": {"weights": ["*.bias"], "name": "torch.optim:Adafactor", "arguments": {"d": 2.0}},
        },
    },
}
SAMPLED = ("adadelta", "radam", "fused", "own", "classes")


def parted(data, **changes):
    """SGD in three parts, one weight of the second of which is in the first, and a layer that is frozen."""
    dense = {
        "name": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.01,
        "schedule": {"decay": "cosine", "warmup_steps": 3, "decay_steps": 12, "end_multiplier": 0.1},
        "frozen": ["dense_arch.model._mlp.1.*"],
        "parts": {
            "top": {
                "weights": ["over_arch.model.1.*"],
                "learning_rate": 0.2,
                "schedule": {
                    "decay": "piecewise",
                    "unit": "epochs",
                    "boundaries": [1, 2],
                    "multipliers": [1, 0.5, 0.1],
                },
            },
            "biases": {"weights": ["*.bias"], "weight_decay": 0.0},
        },
    }
    return config(data, optimizer__dense=dense | changes, train__steps=STEPS, planner__tables=REPLICATED)


def rate_of(name, step):
    """The closed forms of the same."""
    if name.startswith("over_arch.model.1."):
        return 0.2 * [1, 0.5, 0.1][(step - 1) // EPOCH]
    done = min(1, (step - 3) / 12)
    return 0.1 * (step / 3 if step < 3 else 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)


def frozen(data):
    return config(data, optimizer__dense__frozen=["*"], train__steps=STEPS, planner__tables=REPLICATED)


def classes(data):
    """Adam with a layer that SGD trains, and biases that RMSprop trains, clipped together in two microbatches."""
    dense = {
        "name": "adam",
        "learning_rate": 0.01,
        "eps": 1e-3,
        "weight_decay": 0.1,
        "max_norm": 0.5,
        "parts": {
            "top": {"weights": [r"regex:over_arch\.model\.\d\.(?!.*bias).*"], "name": "sgd", "learning_rate": 0.2},
            "biases": {"weights": ["*.bias"], "name": "rmsprop", "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.0},
        },
    }
    return config(
        data,
        optimizer__dense=dense,
        optimizer__sparse__learning_rate=0.0,
        optimizer__ema__decay=0.9,
        train__steps=STEPS,
        train__micro_batches=2,
    )


def recorded(data, steps):
    tree = parted(data, name="custom:RecordedSGD", momentum=0.0, arguments={"momentum": 0.9})
    tree["checkpoint"] = {"every_steps": 1, "keep": {"newest": STEPS}}
    tree["train"]["steps"] = steps
    return tree


def resumed(data, name, steps):
    parts = {"biases": {"weights": ["*.bias"], "learning_rate": 0.02}}
    dense = {"learning_rate": 0.01, "parts": parts, "frozen": [FROZEN], **RESUMED[name]}
    return config(data, optimizer__dense=dense, train__steps=steps)


@pytest.fixture(scope="module")
def names(request):
    return list(RESUMED) if request.config.getoption("all") else list(SAMPLED)


@pytest.fixture(scope="module")
def folder(names, matrix, tmp_path_factory):
    """Runs of parts and of frozen weights on each number of ranks; baselines, and runs resumed after STOP steps."""
    folder = tmp_path_factory.mktemp("parts")
    data = write_rows(folder / "data", [130, 126])

    def everywhere(ranks):
        trees = {"parts": parted(data), "frozen": frozen(data), "classes": classes(data)}
        return [{"config": tree, "out": str(folder / f"{name}-{ranks}")} for name, tree in trees.items()]

    def of_length(steps, suffix=""):
        trees = {name: resumed(data, name, steps) for name in names} | {"recorded": recorded(data, steps)}
        return [{"config": tree, "out": str(folder / f"{name}{suffix}")} for name, tree in trees.items()]

    stopped, baselines = of_length(STOP), of_length(STEPS, "-baseline")
    resumes = [job | {"resume": "must"} for job in of_length(STEPS)]
    rounds = [(ranks, everywhere(ranks)) for ranks in matrix]
    launch_rounds([*rounds, (2, stopped + baselines), (2, resumes)], folder)
    return folder


def gradients(model, settings):
    """Yields the number of each step after plain autograd in float64, in one process, has set the gradients."""
    files = find_files("data.train", settings.data.train, settings.data)
    loader = Loader(files, settings.data, Lanes(files.rows, 8, 64), 0, 1, settings.train.seed, True)
    for step, batch in enumerate(loader.batches(0, STEPS), 1):
        logits = model(batch.dense.double(), batch.sparse)
        each = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.double(), reduction="none")[:, 0]
        real = batch.weights.double()
        model.zero_grad()
        ((each * real).sum() / real.sum()).backward()
        yield step


def trained(settings, rate, weight_decay, momentum):
    """The weights after the same training in one process: float64, plain autograd, and SGD written out."""
    model = plain_model(settings).double()
    buffers = {name: 0.0 for name, _ in model.named_parameters()}
    for step in gradients(model, settings):
        for name, weight in model.named_parameters():
            buffers[name] = momentum(name) * buffers[name] + weight.grad + weight_decay(name) * weight.detach()
            weight.data -= rate(name, step) * buffers[name]
    return model.state_dict()


def weights_of(out):
    tensors = saved_tensors(out, STEPS)
    return {name.removeprefix("model.model."): tensors[name] for name in tensors if name.startswith("model.")}


def is_table(name):
    return "embedding_bags" in name


@pytest.fixture(scope="module")
def expected(folder):
    settings = Config.model_validate(parted(folder / "data"))

    def rate(name, step):
        if is_table(name):
            return 0.5
        return 0.0 if name.startswith("dense_arch.model._mlp.1.") else rate_of(name, step)

    def decay(name):
        bias = name.endswith(".bias") and not name.startswith("over_arch.model.1.")
        return 0.0 if is_table(name) or bias else 0.01

    return trained(settings, rate, decay, lambda name: 0.0 if is_table(name) else 0.9)


def test_parts_train_as_in_plain_autograd(folder, expected, ranks):
    found = weights_of(folder / f"parts-{ranks}")
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].double(), value, rtol=1e-5, atol=1e-5, err_msg=name)


def test_parts_train_with_classes_of_their_own_as_torch_s_in_float64(folder, ranks):
    model = plain_model(Config.model_validate(classes(folder / "data"))).double()
    dense = {name: weight for name, weight in model.named_parameters() if not is_table(name)}
    top = {name for name in dense if name.startswith("over_arch") and "bias" not in name}
    biases = {name for name in dense if "bias" in name}
    others = dense.keys() - top - biases
    assert min(map(len, (top, biases, others))) > 1
    optimizers = [
        torch.optim.SGD([dense[name] for name in top], lr=0.2, weight_decay=0.1),
        torch.optim.RMSprop([dense[name] for name in biases], lr=0.01, alpha=0.9, eps=1e-3),
        torch.optim.Adam([dense[name] for name in others], lr=0.01, eps=1e-3, weight_decay=0.1),
    ]
    for _ in gradients(model, Config.model_validate(classes(folder / "data"))):
        nn.utils.clip_grad_norm_(dense.values(), 0.5)
        for optimizer in optimizers:
            optimizer.step()
    found, expected = weights_of(folder / f"classes-{ranks}"), model.state_dict()
    for name in dense:
        np.testing.assert_allclose(found[name].double(), expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
    slots = {
        name.rpartition(".")[2] for name in saved_tensors(folder / f"classes-{ranks}", STEPS) if name[:6] == "dense."
    }
    assert slots == {"step", "square_avg", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("name", ["parts", "frozen"])
def test_frozen_weights_stay_bit_for_bit_and_have_no_state(folder, name, ranks):
    before = plain_model(Config.model_validate(parted(folder / "data"))).state_dict()
    after = weights_of(folder / f"{name}-{ranks}")
    still = {weight for weight in before if torch.equal(after[weight], before[weight])}
    layers = {weight for weight in before if not is_table(weight)}
    assert still == (layers if name == "frozen" else {w for w in layers if w.startswith("dense_arch.model._mlp.1.")})
    state = {key.rpartition(".")[0] for key in saved_tensors(folder / f"{name}-{ranks}", STEPS) if key[:6] == "dense."}
    assert state == {f"dense.model.{weight}" for weight in layers - still}


def test_tables_train_below_a_dense_part_that_is_frozen(folder, ranks):
    settings = Config.model_validate(frozen(folder / "data"))
    expected = trained(settings, lambda name, _: 0.5 if is_table(name) else 0.0, lambda _: 0.0, lambda _: 0.0)
    for name, value in weights_of(folder / f"frozen-{ranks}").items():
        np.testing.assert_allclose(value.double(), expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_run_takes_the_rates_of_its_schedules_before_and_after_a_resume(folder):
    for step in range(1, STEPS + 1):
        tensors = saved_tensors(folder / "recorded", step)
        rates = {name[len("dense.model.") : -len(".rate")]: tensors[name] for name in tensors if name[-5:] == ".rate"}
        assert len(rates) == 6
        for name, rate in rates.items():
            assert rate.item() == pytest.approx(rate_of(name, step), rel=1e-12), (name, step)


def test_a_resumed_run_ends_bit_for_bit_as_its_baseline(folder, names):
    for name in [*names, "recorded"]:
        assert losses(folder / name) == losses(folder / f"{name}-baseline"), name
        found, expected = saved_tensors(folder / name, STEPS), saved_tensors(folder / f"{name}-baseline", STEPS)
        assert found.keys() == expected.keys()
        for tensor, value in expected.items():
            assert torch.equal(found[tensor], value), f"{name}: {tensor}"
