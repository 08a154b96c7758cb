"""The compiled dense part: close to the eager one, exact between compiled runs, compiled once for all batch sizes.

Two models whose dense part is one graph, and two whose is not, are compared with eager torch by default, all with
`--all`.
"""

import shutil

import numpy as np
import pytest
import torch
import torch._inductor.config
from jobs import config, launch_rounds, losses, saved_tensors
from ready_made import ready_made, write_ratings

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.models.step_samples import samples_of
from trainer.training.sharded_model import build_sharded_model

STEPS, STOP = 8, 3
RANKED = {
    "liked": {"label": "label", "loss": "jrc", "group": "user_id", "across": "batch"},
    "loved": {"label": "loved"},
}
WHOLE = [
    *("dlrm", "dlrm_dcn", "deepfm", "wide_deep", "xdeepfm", "autoint", "masknet", "finalmlp", "wukong"),
    *("mmoe", "ple", "esmm", "dbmtl", "pepnet", "custom:Sum"),
]
IN_PARTS = {
    "sequences": ("din", {}),
    "a scaled loss": ("dlrm", {"train__precision": "fp16"}),
    "gradients of each task": ("mmoe", {"model__task_weighting": "pareto"}),
    "a loss across ranks": (
        "dlrm",
        {"tasks": RANKED, "data__labels": ["label", "loved"], "data__groups": ["user_id"]},
    ),
    "a branch on values": ("custom:Branching", {}),
    "running means": ("custom:Normalized", {}),
    "batch normalization": ("deepfm", {"model__normalization": "batch"}),
    "a weight in a lambda": ("custom:Scaled", {}),
    "a lock": ("custom:Locked", {}),
}
MATRIX = "case", lambda whole: [*WHOLE, *IN_PARTS] if whole else ["deepfm", "ple", "sequences", "a branch on values"]

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler: apt install g++")


def job(rows, out, steps=STEPS, **changes):
    tree = config(rows, model__name="dlrm", train__compile=True, train__steps=steps)
    tree["train"] |= changes
    return {"config": tree, "out": str(out)}


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    """Compiled runs: on one rank and two, in microbatches, and resumed after STOP steps; and one that is not."""
    folder = tmp_path_factory.mktemp("compile")
    launch_rounds(
        [
            (
                1,
                [
                    job(rows, folder / "eager", compile=False),
                    job(rows, folder / "compiled"),
                    job(rows, folder / "micro", micro_batches=2),
                    job(rows, folder / "resumed", STOP),
                ],
            ),
            (1, [job(rows, folder / "resumed") | {"resume": "must"}]),
            (2, [job(rows, folder / "ranks")]),
        ],
        folder,
    )
    return folder


@pytest.mark.more("compiles for a minute")
@pytest.mark.parametrize("run", ["compiled", "micro", "ranks"])
def test_losses_are_close_to_those_of_an_eager_run(folder, run):
    np.testing.assert_allclose(losses(folder / run), losses(folder / "eager"), rtol=1e-5)


@pytest.mark.more("compiles for a minute")
def test_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one(folder):
    assert losses(folder / "resumed") == losses(folder / "compiled")
    expected, found = saved_tensors(folder / "compiled", STEPS), saved_tensors(folder / "resumed", STEPS)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


@pytest.fixture
def settings(rows):
    torch.compiler.reset()
    return Config.model_validate(job(rows, "")["config"])


@pytest.mark.more("compiles for a minute")
def test_another_batch_size_is_not_compiled_again(settings, tmp_path, monkeypatch):
    """One graph is right for all sizes; a single sample is computed without it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = find_files("data.train", settings.data.train, settings.data)
    with process_group() as context:
        model = build_sharded_model(settings, context)
        for size in (64, 32, 24, 8, 64):
            batch = next(Loader(files, settings.data, Lanes(files.rows, 8, size), 0, 1, 0, False).batches(0, 1))
            compare_with_eager(model, batch)
        single = next(Loader(files, settings.data, Lanes(files.rows, 1, 1), 0, 1, 0, False).batches(0, 1))
        compare_with_eager(model, single)
    assert len([*tmp_path.rglob("*.so")]) == 1


def compare_with_eager(model, batch):
    with_loss = model.model.module
    compiled = with_loss.with_gradients
    found, _ = model.model(batch)
    with_loss.with_gradients = None
    expected, _ = model.model(batch)
    with_loss.with_gradients = compiled
    torch.testing.assert_close(found, expected)


def model_and_batch(settings, context):
    lanes = Lanes(640, 8, settings.data.global_batch_size)
    model = build_sharded_model(settings, context, lanes)
    files = find_files("data.train", settings.data.train, settings.data)
    return model, next(Loader(files, settings.data, lanes, 0, 1, 0, True).batches(0, 1))


def gradients(model, batch):
    """Returns the loss of a batch and its gradients, of all dense weights and of the embeddings."""
    for weight in model.optimizers.dense_parameters:
        weight.grad = None
    samples_of(model.model).begin(0, 1, batch.places, batch.weights)
    loss, outputs = model.model(batch)
    loss.backward()
    found = [weight.grad for weight in model.optimizers.dense_parameters] + model.cut.gradients
    model.cut.end()
    return loss.detach(), outputs.predictions, found


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    return write_ratings(tmp_path_factory.mktemp("ratings"))


def ready(ratings, name, **changes):
    changes = {
        "train__compile": True,
        "model__dropout": 0.1,
        "train__nonfinite": "error",
        "data__validation": [],
        "data__test": [],
    } | changes
    if ":" in name:
        return Config.model_validate(ready_made("dlrm", ratings, model__name=name, **changes))
    return Config.model_validate(ready_made(name, ratings, **changes))


@pytest.mark.few(1, "one stands for all")
def test_gradients_are_those_of_eager_torch(ratings, case, capsys):
    """From one graph, or from networks that are compiled one by one where one graph cannot have all."""
    name, changes = IN_PARTS.get(case, (case, {}))
    with process_group() as context:
        model, batch = model_and_batch(ready(ratings, name, **changes), context)
        gradients(model, batch)  # as a run does at a rate of zero, before its first step
        compiled = gradients(model, batch)
        assert bool(model.model.module.with_gradients) == (case in WHOLE)
        networks = [module for module in model.model.modules() if module._compiled_call_impl]
        assert bool(networks) == (case in IN_PARTS)
        assert ("compiling each network of the dense part" in capsys.readouterr().out) == (case in IN_PARTS)
        model.model.module.with_gradients = None
        for network in networks:
            network._compiled_call_impl = None
        rtol, atol = (2e-3, 1e-4) if case == "a scaled loss" else (1e-4, 1e-6)  # of fp16, which is scaled
        torch.testing.assert_close(compiled, gradients(model, batch), rtol=rtol, atol=atol)


@pytest.mark.more("compiles")
def test_a_second_model_of_a_process_has_its_own_graph(ratings):
    """Its dense part has weights of the same shapes, and other operations."""
    with process_group() as context:
        found = []
        for name in ("wide_deep", "deepfm"):
            model, batch = model_and_batch(ready(ratings, name, data__dense={}), context)
            loss, *_ = gradients(model, batch)
            model.model.module.with_gradients = None
            torch.testing.assert_close(loss, gradients(model, batch)[0])
            found.append(loss)
        assert found[0] != found[1]


def test_without_a_compiler_training_goes_on_and_says_so(settings, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # or there may be machine code that needs none
    # Which is read from CXX when torch is imported.
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}), process_group() as context:
        model, batch = model_and_batch(settings, context)
        model.model(batch)
    assert "train.compile is off, as this machine cannot compile: InvalidCxxCompiler: " in capsys.readouterr().out
    assert all(module._compiled_call_impl is None for module in model.model.modules())
