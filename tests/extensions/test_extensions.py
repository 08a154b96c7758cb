"""The seam of the extensions: each is found by its name, and the trainer works without their files."""

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from command import write_config
from jobs import config, launch, losses

from trainer.training.extensions import EXTENSIONS

ROOT = Path(__file__).parents[2]
PLACES = [path for extension in EXTENSIONS.values() for path in extension.places.values()]


@pytest.mark.parametrize("path", PLACES)
def test_what_the_table_names_is_there(path):
    module, _, attribute = path.partition(":")
    assert callable(getattr(import_module(module), attribute))


def test_without_their_files_training_has_the_same_losses_and_their_keys_are_refused(rows, tmp_path):
    tree = config(rows, train__steps=3)
    launch([{"config": tree, "out": str(tmp_path / "with")}], 1, tmp_path)
    for package in ("components", "schedulers", "torchx_recsys", "trainer"):
        shutil.copytree(ROOT / package, tmp_path / "copy" / package)
    shutil.rmtree(tmp_path / "copy" / "trainer" / "extensions")
    file = write_config(tmp_path / "config.toml", tree)

    def train(out, *words):
        command = [sys.executable, "-m", "trainer", "train", str(file), "--out", str(tmp_path / out), *words]
        environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(command, cwd=tmp_path / "copy", env=environment, capture_output=True, text=True)

    done = train("without")
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "without") == losses(tmp_path / "with")
    refused = train("refused", "--train.compile", "True")
    assert refused.returncode == 2
    assert refused.stderr == (
        "error: train.compile is set, but the extension 'compiled' that it turns on is not installed: there is no "
        "trainer.extensions; leave the key out, or install the whole package\n"
    )
    assert not (tmp_path / "refused").exists()
