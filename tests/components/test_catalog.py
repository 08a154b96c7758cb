"""The catalog as a user of the `torchx` command sees it."""

import inspect
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from catalog import COMPONENTS, FUNCTIONS, SHAPES
from docstring_parser import parse
from torchx.specs.builders import materialize_appdef
from torchx.specs.file_linter import validate
from torchx.specs.finder import get_components

GOLDEN = Path(__file__).parent / "golden"


def compact(value):
    """The AppDef without what is empty, what differs from run to run, and with one flag a line."""
    if isinstance(value, dict):
        items = {key: compact(item) for key, item in value.items() if not key.startswith("TORCHX_")}
        return {key: item for key, item in items.items() if item not in (None, {}, [], "")}
    if isinstance(value, list):
        return [compact(item) for item in value]
    if isinstance(value, str) and value.startswith("exec python -P -m trainer.launch"):
        return re.split(r" (?=--|-m )", value)
    return value


def test_builtins_lists_our_components_and_torchx_own(torchx):
    listed = set(re.findall(r"\d+\. (\S+)", torchx("builtins").stdout))
    assert set(COMPONENTS) == {name for name in listed if name.startswith(("dlrm.", "data.", "tools."))}
    assert {"dist.torchrun", "utils.echo"} <= listed


def test_every_component_has_a_case_here():
    assert set(FUNCTIONS) == set(COMPONENTS)


@pytest.mark.parametrize("name", COMPONENTS)
def test_torchx_finds_the_component_and_its_linter_accepts_it(name):
    function = FUNCTIONS[name]
    found = get_components()[name]
    assert (found.fn, found.validation_errors) == (function, [])
    assert validate(inspect.getsourcefile(inspect.unwrap(function)), function.__name__, None) == []


@pytest.mark.parametrize("name", COMPONENTS)
def test_docstring_documents_every_argument_and_no_other(name):
    documentation = parse(FUNCTIONS[name].__doc__)
    assert [param.arg_name for param in documentation.params] == [*inspect.signature(FUNCTIONS[name]).parameters]
    assert all(param.description for param in documentation.params)


@pytest.mark.parametrize("name", COMPONENTS)
def test_help_shows_every_argument_with_its_description(name, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        materialize_appdef(FUNCTIONS[name], ["--help"])
    text = " ".join(capsys.readouterr().out.split())
    for param in parse(FUNCTIONS[name].__doc__).params:
        assert " ".join(param.description.split()) in text
        assert param.arg_name.endswith("args") or f"--{param.arg_name} " in text


def test_help_of_the_command_is_that_of_the_component(torchx):
    shown = torchx("run", "tools.plan", "--help").stdout
    assert shown.startswith("usage: torchx run <run args...> plan ")
    assert "-h str, --h str  Named resource of the node that plans; replaces cpu and memMB. (default: None)" in shown


@pytest.mark.parametrize("name", COMPONENTS)
def test_example_in_the_docstring_runs(quick, name):
    torchx, *words = shlex.split(re.search(r"Example: (.*)", FUNCTIONS[name].__doc__)[1])
    assert (torchx, words[0]) == ("torchx", "run")
    assert name in words
    assert "=== APPLICATION ===" in quick("run", "--dryrun", *words[1:])


@pytest.mark.parametrize("scheduler", ["local_cwd", "slurm"])
@pytest.mark.parametrize("name", SHAPES)
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
