"""The flags of every component: what a user gives reaches the command of `python -m trainer`, and nothing else does."""

import copy
import inspect
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from catalog import COMPONENTS, FUNCTIONS, trainer_words
from hypothesis import given, settings
from hypothesis import strategies as st
from torchx.specs import AppDef
from torchx.specs.builders import materialize_appdef

from trainer.commands import COMMANDS, declaration
from trainer.config.overrides import parse

OF_JOB = {"h", "cpu", "gpu", "memMB", "image", "env", "mounts", "metadata", "max_retries", "name", "j", "seeds"}
# Flags of a component that have another name in the command.
OTHER_NAMES = {
    ("tools.plan", "nproc"): "world_size",
    ("tools.schedule", "draw"): "out",
    ("data.check", "everything"): "all",
}
# Flags whose default is on purpose another than the command's, or which the command has to be given.
OWN_DEFAULTS = {
    *((name, "out") for name in ("dlrm.single_node", "dlrm.multi_node", "dlrm.data_parallel", "tools.bench")),
    ("tools.plan", "nproc"),
}
WORDS = st.text("abcXYZ059 ._/*$'\"{}();-é", max_size=8).map(
    "w{}w".format
)  # TorchX strips spaces around the items of a list
COMPONENT = pytest.mark.parametrize("name", COMPONENTS)


def own_flags(name: str) -> dict[str, inspect.Parameter]:
    """A component's flags that are the command's, not the job's."""
    left_out = OF_JOB | ({"nproc"} if name == "dlrm.single_node" else set())
    flags = inspect.signature(FUNCTIONS[name]).parameters.values()
    return {flag.name: flag for flag in flags if flag.kind is flag.KEYWORD_ONLY and flag.name not in left_out}


def command_of(name: str):
    """The function of the command that a component runs, as it is declared."""
    place = COMMANDS[trainer_words(build(name, {}))[0]][0]
    return declaration(*place.split(":"))


def required(name: str) -> dict[str, Any]:
    """Values for the flags that a component has to be given."""
    missing = [flag for flag in own_flags(name).values() if flag.default is flag.empty]
    values = {"config": "movielens"}
    return {flag.name: values.get(flag.name, ["w"] if flag.annotation == list[str] else "w") for flag in missing}


def build(name: str, values: dict[str, Any]) -> AppDef:
    """A component's app, from flags as they are typed."""
    words = []
    for flag, value in (required(name) | values).items():
        words.append(f"--{flag}={','.join(value) if isinstance(value, list) else value}")
    return materialize_appdef(FUNCTIONS[name], words)


def values_of(parameter: inspect.Parameter) -> st.SearchStrategy:
    """Values that a command takes for one of its parameters."""
    kinds = [kind for kind in get_args(parameter.annotation) or [parameter.annotation] if kind is not type(None)]
    kind = parameter.annotation if get_origin(parameter.annotation) in (Literal, tuple, list) else kinds[0]
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) in (tuple, list):
        return st.lists(WORDS, min_size=1, max_size=3)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    numbers = {int: st.integers(1, 10**6), float: st.floats(0, 10), bool: st.just(True)}
    return st.sampled_from(["movielens", "criteo_kaggle"]) if parameter.name == "config" else numbers.get(kind, WORDS)


@COMPONENT
def test_flags_are_those_of_the_command_with_its_defaults(name):
    parameters = inspect.signature(command_of(name)).parameters
    for flag in own_flags(name).values():
        parameter = parameters[OTHER_NAMES.get((name, flag.name), flag.name)]
        if (name, flag.name) in OWN_DEFAULTS or flag.default is flag.empty:
            continue
        default = ",".join(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        assert flag.default == default or (flag.default is None and default in ((), ""))


@pytest.mark.sample(8)
@COMPONENT
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_what_is_given_reaches_the_command_and_what_is_unset_does_not(name, data):
    command, flags = command_of(name), own_flags(name)
    parameters = inspect.signature(command).parameters
    in_command = {flag: OTHER_NAMES.get((name, flag), flag) for flag in flags}
    optional = {
        flag: values_of(parameters[in_command[flag]]) for flag in flags if (name, flag) != ("tools.plan", "nproc")
    }
    values = data.draw(st.fixed_dictionaries({}, optional=optional))
    words = trainer_words(build(name, values))
    values = required(name) | values
    taken = parse(command, words[1:], words[0]).keywords
    for flag, value in values.items():
        if flag == "config":
            assert words[1] == value
        else:
            assert taken[in_command[flag]] == (tuple(value) if isinstance(taken[in_command[flag]], tuple) else value)
    for flag in flags.keys() - values.keys():
        default = flags[flag].default
        if default is None or default is False:
            assert f"--{in_command[flag].replace('_', '-')}" not in words
        elif default not in ("*", "runs/${app_id}") and flag != "nproc":
            assert taken[in_command[flag]] == default


@COMPONENT
def test_words_after_the_flags_come_last_and_as_they_are(name):
    rest = ["--section.key", "it's $HOME", "$$", ""]
    words = trainer_words(FUNCTIONS[name](*rest, **required(name)))
    assert words[-len(rest) :] == rest


@COMPONENT
def test_a_component_is_pure_and_gives_the_job_what_it_is_asked_for(name):
    given = {
        "image": "trainer:1",
        "cpu": 3,
        "memMB": 99,
        "env": {"A": "1", "B": "$HOME"},
        "mounts": ["type=bind", "src=/host", "dst=/job"],
        "metadata": {"kubernetes": "file:///pod.yaml"},
    }
    before = copy.deepcopy(given)
    apps = [FUNCTIONS[name](**given, **required(name)) for _ in range(2)]
    assert apps[0] == apps[1]
    assert given == before
    (role,) = apps[0].roles
    assert (role.image, role.resource.cpu, role.resource.memMB) == ("trainer:1", 3, 99)
    assert {name: role.env[name] for name in given["env"]} == {"A": "1", "B": "$$HOME"}
    assert [mount.dst_path for mount in role.mounts] == ["/job"]
    assert role.metadata == given["metadata"]
    assert FUNCTIONS[name](h="h100", **required(name)).roles[0].resource.gpu == 8


@COMPONENT
def test_the_names_of_a_job_fit_every_scheduler(name):
    app = FUNCTIONS[name](**required(name))
    (role,) = app.roles
    ranks = "j" in inspect.signature(FUNCTIONS[name]).parameters or name == "dlrm.single_node"
    assert (role.name, role.entrypoint) == (("trainer", "bash") if ranks else (app.name, "python"))
    assert app.name.replace("-", "").isalpha()
    # Volcano makes the name of a variable of it.
    assert role.num_replicas == 1 or role.name.isalpha()


@COMPONENT
def test_a_flag_that_is_not_there_is_refused(name, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        build(name, {"nosuch": "1"})
    assert "--nosuch" in capsys.readouterr().err
    with pytest.raises(TypeError, match="nosuch"):
        FUNCTIONS[name](nosuch=1, **required(name))
