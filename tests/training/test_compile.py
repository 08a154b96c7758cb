"""The compiled dense part: close to the eager one, exact between compiled runs, compiled once for all batch sizes."""

import shutil

import numpy as np
import pytest
import torch
import torch._inductor.config
from jobs import config, launch_rounds, losses, saved_tensors
from torch._dynamo.utils import counters

from trainer.config.root import Config
from trainer.core.distributed import process_group
from trainer.data.dataset import find_files
from trainer.data.lanes import Lanes
from trainer.data.loader import Loader
from trainer.training.sharded_model import build_sharded_model

STEPS, STOP = 8, 3

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


@pytest.mark.parametrize("run", ["compiled", "micro", "ranks"])
def test_losses_are_close_to_those_of_an_eager_run(folder, run):
    np.testing.assert_allclose(losses(folder / run), losses(folder / "eager"), rtol=1e-5)


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


def test_another_batch_size_is_not_compiled_again(settings):
    files = find_files("data.train", settings.data.train, settings.data)
    with process_group() as context:
        model = build_sharded_model(settings, context)
        compiled = []
        for size in (64, 32, 24, 64):
            batch = next(Loader(files, settings.data, Lanes(files.rows, 8, size), 0, 1, 0, False).batches(0, 1))
            model.model(batch)[0].backward()
            compiled.append(counters["stats"]["unique_graphs"])
    assert compiled[0] > 1  # the probe is one of them
    assert compiled == [compiled[0]] * 4


def test_without_a_compiler_training_goes_on_and_says_so(settings, capsys):
    # Which is read from CXX when torch is imported.
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler")}), process_group() as context:
        model = build_sharded_model(settings, context)
    assert "train.compile is off, as this machine cannot compile: InvalidCxxCompiler: " in capsys.readouterr().out
    assert all(module._compiled_call_impl is None for module in model.model.modules())
