"""The catalog as a user of the `torchx` command sees it."""

import inspect
import json
import os
import re
from pathlib import Path

import pytest
from catalog import COMPONENTS
from docstring_parser import parse
from torchx.specs.file_linter import validate

from components import data, dlrm, tools

GOLDEN = Path(__file__).parent / "golden"


def functions():
    for module in (dlrm, data, tools):
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__:
                yield f"{module.__name__.partition('.')[2]}.{name}", function


FUNCTIONS = dict(functions())


def compact(value):
    """The AppDef without what is empty, what differs from run to run, and with one flag a line."""
    if isinstance(value, dict):
        items = {key: compact(item) for key, item in value.items() if not key.startswith("TORCHX_")}
        return {key: item for key, item in items.items() if item not in (None, {}, [], "")}
    if isinstance(value, list):
        return [compact(item) for item in value]
    if isinstance(value, str) and value.startswith("exec python -m trainer.launch"):
        return re.split(r" (?=--|-m )", value)
    return value


def test_builtins_lists_our_components_and_torchx_own(torchx):
    listed = set(re.findall(r"\d+\. (\S+)", torchx("builtins").stdout))
    assert set(COMPONENTS) == {name for name in listed if name.startswith(("dlrm.", "data.", "tools."))}
    assert {"dist.torchrun", "utils.echo"} <= listed


def test_every_component_has_a_case_here():
    assert set(FUNCTIONS) == set(COMPONENTS)


@pytest.mark.parametrize("name", COMPONENTS)
def test_linter_accepts(name):
    function = FUNCTIONS[name]
    assert validate(inspect.getfile(function), function.__name__, None) == []


@pytest.mark.parametrize("name", COMPONENTS)
def test_docstring_documents_every_argument_and_no_other(name):
    documentation = parse(FUNCTIONS[name].__doc__)
    assert [param.arg_name for param in documentation.params] == [*inspect.signature(FUNCTIONS[name]).parameters]
    assert all(param.description for param in documentation.params)


@pytest.mark.parametrize("name", COMPONENTS)
def test_help_shows_every_argument_with_its_description(torchx, name):
    text = " ".join(torchx("run", name, "--help").stdout.split())
    for param in parse(FUNCTIONS[name].__doc__).params:
        assert " ".join(param.description.split()) in text
        assert param.arg_name.endswith("args") or f"--{param.arg_name} " in text


@pytest.mark.parametrize("name", COMPONENTS)
def test_example_in_the_docstring_runs(torchx, name):
    command = re.search(r"Example: torchx (.*)", FUNCTIONS[name].__doc__).group(1)
    run, *args = command.replace('"', "").split()
    done = torchx(run, "--dryrun", *args)
    assert done.returncode == 0, done.stderr
    assert name in command


@pytest.mark.parametrize("scheduler", ["local_cwd", "slurm"])
@pytest.mark.parametrize("name", COMPONENTS)
def test_dryrun_matches_the_golden_app(torchx, tmp_path, name, scheduler):
    args = ("--dryrun", "--json", name, "--image", "trainer:1", *COMPONENTS[name])
    done = torchx("run", "-s", scheduler, "--workspace", "", *args)
    assert done.returncode == 0, done.stderr
    app = compact(json.loads(done.stdout)["app"])
    golden = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(json.dumps(app, indent=2, sort_keys=True) + "\n")
    assert app == json.loads(golden.read_text()), "UPDATE_GOLDEN=1 pytest tests/components accepts the change"
    assert [*tmp_path.iterdir()] == []
