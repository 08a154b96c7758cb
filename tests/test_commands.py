"""The commands of `python -m trainer`: what they say before torch is imported, and what they are declared to take."""

import importlib
import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from trainer.commands import COMMANDS, declaration, read_command

MORE_THAN_A_SCREEN = ("bench", "yambda")  # seven things to measure, and all that a generated log can be
SCREEN = 50
FUNCTIONS = {name: tuple(place.split(":")) for name, (place, _, _) in COMMANDS.items()}
ARGUMENTS = {name: inspect.signature(declaration(*place)).parameters for name, place in FUNCTIONS.items()}
CONFIGURED = [name for name, arguments in ARGUMENTS.items() if "config" in arguments]
WITHOUT_TORCH = """
import json, sys
from trainer.__main__ import main
for words in json.loads(sys.argv[1]):
    try:
        code = main(words)
    except SystemExit as left:
        code = left.code
    print("ended with", code, "torch" if "torch" in sys.modules else "alone")
"""


def required(name: str) -> list[str]:
    """Returns a command's flags without a default, each with a value."""
    flags = [one.name for one in ARGUMENTS[name].values() if one.default is one.empty]
    return [word for flag in flags if not flag.startswith("config") for word in (f"--{flag}", "x")]


def run_without_torch(folder: Path, lines: list[list[str]]) -> subprocess.CompletedProcess[str]:
    """Runs command lines one after the other in a process that has not imported torch."""
    words = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(lines)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)


def test_wrong_input_is_found_before_torch_is_imported(tmp_path):
    (tmp_path / "broken.toml").write_text("[data\n")
    (tmp_path / "key.toml").write_text("[train]\nstepz = 3")
    (tmp_path / "value.toml").write_text("[train]\nsteps = 'ten'")
    wrong = {
        "nope.toml": "configuration 'nope.toml' (",
        "broken.toml": "configuration 'broken.toml' is not TOML",
        "key.toml": "unknown key 'train.stepz'; did you mean 'steps'?",
        "value.toml": "train.steps is 'ten'",
        "movielens --train.stepz 3": "unknown flag --train.stepz; did you mean --train.steps?",
        "movielens --train.steps ten": "--train.steps is 'ten'",
        "movielens --ouy x": "unknown flag --ouy",
        "movielens --help-config trian": "--help-config is 'trian', which is no section; did you mean 'train'?",
    }
    lines = [[name, *words.split(), *required(name)] for name in CONFIGURED for words in wrong]
    done = run_without_torch(tmp_path, [*lines, ["trian"], ["serve", "--dir", "x"]])
    assert done.stdout.splitlines() == ["ended with 2 alone"] * (len(lines) + 2)
    for said, expected in zip(done.stderr.splitlines(), [*wrong.values()] * len(CONFIGURED), strict=False):
        assert said.startswith("error: ")
        assert expected in said
    assert len(done.stderr.splitlines()) == len(lines) + 2


def test_help_needs_no_torch_and_fits_a_screen(tmp_path):
    done = run_without_torch(tmp_path, [[name, "--help"] for name in COMMANDS])
    assert done.stdout.count("ended with 0 alone\n") == len(COMMANDS)
    for name, text in zip(COMMANDS, done.stdout.split("ended with 0 alone\n"), strict=False):
        assert text.startswith(f"usage: python -m trainer {name} ")
        assert len(text.splitlines()) <= SCREEN or name in MORE_THAN_A_SCREEN
        flags = ARGUMENTS[name].keys() - {"config", "config_words", "what", "arguments"}
        assert all(f"--{flag.replace('_', '-')} " in text for flag in flags)
        assert f"Example: python -m trainer {name} " in text
        assert ("--help-config SECTION" in text) == (name in CONFIGURED)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_declared_as_it_is(name):
    module, function = FUNCTIONS[name]
    real, declared = getattr(importlib.import_module(module), function), declaration(module, function)
    assert inspect.signature(declared) == inspect.signature(real)
    assert declared.__doc__ == real.__doc__


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_is_a_right_command_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    movielens = tmp_path / "runs" / "movielens"
    movielens.mkdir(parents=True)
    for file in (movielens / "config.toml", tmp_path / "stream.toml"):
        file.write_text('base = "movielens"')
    module, function = FUNCTIONS[name]
    assert read_command([name, *COMMANDS[name][2].split()]).func is getattr(importlib.import_module(module), function)


def test_versions_are_told_without_torch(tmp_path):
    done = run_without_torch(tmp_path, [["--version"]])
    said, ended = done.stdout.splitlines()
    assert said.startswith(f"torchx-recsys {version('torchx-recsys')}, torch {version('torch')}, torchrec ")
    assert ended == "ended with 0 alone"
