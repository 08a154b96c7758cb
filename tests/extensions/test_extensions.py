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


KEYS = {
    "train.preflight_seconds": 5.0,
    "data.segments.path": "days/{segment}",
    "train.compile": True,
    "data.sparse.item": {"rows": 9, "ids": "managed"},
    "report.histograms_every_steps": 5,
    "report.profile.first_step": 3,
    "report.baselines": "baselines.json",
}


@pytest.fixture
def copy(tmp_path):
    """A copy of the packages without the files of any extension."""
    for package in ("components", "schedulers", "torchx_recsys", "trainer"):
        shutil.copytree(ROOT / package, tmp_path / "copy" / package)
    shutil.rmtree(tmp_path / "copy" / "trainer" / "extensions")
    return tmp_path / "copy"


def run_in(folder, *words):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def test_without_their_files_training_has_the_same_losses_and_a_key_is_refused(rows, tmp_path, copy):
    tree = config(rows, train__steps=3)
    launch([{"config": tree, "out": str(tmp_path / "with")}], 1, tmp_path)
    train = ["-m", "trainer", "train", str(write_config(tmp_path / "config.toml", tree)), "--out"]
    done = run_in(copy, *train, str(tmp_path / "without"))
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "without") == losses(tmp_path / "with")
    refused = run_in(copy, *train, str(tmp_path / "refused"), "--train.compile", "True")
    assert refused.returncode == 2
    assert refused.stderr == (
        "error: train.compile is set, but the extension 'compiled' that it turns on is not installed: there is no "
        "trainer.extensions; leave the key out, or install the whole package\n"
    )
    assert not (tmp_path / "refused").exists()


def test_every_key_of_a_missing_extension_is_refused(copy):
    code = f"""
from trainer.config.root import Config
from trainer.core.errors import InputError
from trainer.training.extensions import check_extensions
for key, value in {KEYS}.items():
    *sections, name = key.split(".")
    tree = {{name: value}}
    for section in reversed(sections):
        tree = {{section: tree}}
    try:
        check_extensions(Config.model_validate(tree))
    except InputError as error:
        print(error)
"""
    done = run_in(copy, "-c", code)
    refused = [line for line in done.stdout.splitlines() if " is set, but the extension " in line]
    assert [key for key, line in zip(KEYS, refused, strict=True) if not line.startswith(key)] == [], done.stderr
