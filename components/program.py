"""Decorators for components that pass their flags to a command of `python -m trainer`, or to another component.

Such a component declares the command's flags. The flags of the job (resources, image, environment, ...) are added here.

The flags are not read from the command's source: TorchX does not accept Literal, a component shows fewer flags than its
command has, and TorchX requires a `def` with all flags in the component's file. A test compares the two.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torchx
from docstring_parser import parse
from torchx.specs import AppDef

from components import launch

Component = Callable[..., AppDef]


def program(
    command: str,
    *,
    name: str | None = None,
    flags: Mapping[str, str] | None = None,
    choices: Mapping[str, tuple[str, ...]] | None = None,
    implied: Iterable[str] = (),
    separator: Iterable[str] = (),
    lists: Iterable[str] = (),
    **defaults: int,
) -> Callable[[Component], Component]:
    """Returns a decorator that turns a function without a body into a component.

    The function's flags become the command's, under the same names with dashes, in their order. `config` is its first
    word. Flags that are unset (None, False or empty) are left out. The flags of the job are added to the signature and
    to the docstring; the function's docstring may override the documentation of a flag.

    A function with a flag `j` runs under torchrun, on all ranks; any other is one process.

    Args:
        command: The command of `python -m trainer`.
        name: Name of the job. Unset: the command's.
        flags: Other names of flags in the command, with dashes.
        choices: The allowed values of flags.
        implied: Flags that are left out at their default, as they exclude others.
        separator: Words before the `--`.
        lists: Flags whose value is a list, separated by commas, which may be empty.
        defaults: Other defaults of cpu, gpu and memMB. One process has no flag `gpu` unless it is here.
    """
    job_name = name or command

    def make(function: Component) -> Component:
        own = inspect.signature(function).parameters
        on_ranks = "j" in own
        added = _flags_of_job(on_ranks, "gpu" in defaults, {**defaults, "name": job_name})
        signature = inspect.Signature([*own.values(), *added], return_annotation=AppDef)
        forwarded = [flag for flag in own.values() if flag.name != "j" and flag.kind is flag.KEYWORD_ONLY]

        @functools.wraps(function)
        def component(*args: str, **values: Any) -> AppDef:
            bound = signature.bind(*args, **values)
            bound.apply_defaults()
            given = bound.arguments
            for flag, allowed in (choices or {}).items():
                launch.choice(f"--{flag}", given[flag], allowed)
            words = [command]
            for flag in forwarded:
                value = given[flag.name]
                if flag.name in lists:
                    value = [*filter(None, value.split(","))]
                if _is_set(value, flag.default) and not (flag.name in implied and value == flag.default):
                    words += _words(flag.name, value, (flags or {}).get(flag.name))
            words += (*separator, *args) if args else ()
            surroundings = (given[flag] for flag in ("memMB", "image", "env", "mounts", "metadata"))
            node = launch.node(given["h"], given["cpu"], given.get("gpu", 0), *surroundings)
            if on_ranks:
                retries = given["max_retries"]
                return launch.torchrun(*words, name=given["name"], j=given["j"], node=node, max_retries=retries)
            ports = {"http": given["port"]} if "port" in given else None
            return launch.python("trainer", *words, name=job_name, node=node, port_map=ports)

        component.__signature__ = signature  # pyrefly: ignore[missing-attribute]
        component.__doc__ = _documentation(function, signature, on_ranks)
        return component

    return make


def like(base: Component, **replaces: str) -> Callable[[Component], Component]:
    """Returns a decorator that adds the flags of another component, with their defaults and documentation.

    The component receives these flags as `**flags`, which TorchX does not support. Its docstring may override the
    documentation of a flag.

    Args:
        base: The other component.
        replaces: Flags of the component, each with the flag of the other component that it replaces.
    """
    places = {flag: name for name, flag in replaces.items()}

    def make(function: Component) -> Component:
        own, flags = inspect.signature(function), inspect.signature(base).parameters.values()
        names = [own.parameters[places[flag.name]] if flag.name in places else flag for flag in flags]
        function.__signature__ = own.replace(parameters=names)  # pyrefly: ignore[missing-attribute]
        function.__doc__ = _documented(function, inspect.signature(function), inspect.getdoc(base) or "")
        return function

    return make


def _job(
    *,
    h: str | None = None,
    cpu: int = 2,
    gpu: int = 0,
    memMB: int = 4096,
    image: str = torchx.IMAGE,
    env: dict[str, str] | None = None,
    mounts: list[str] | None = None,
    metadata: dict[str, str] | None = None,
    max_retries: int = 0,
    name: str = "",
) -> None:
    """The flags of every job.

    Args:
        h: Named resource of {node}; replaces {numbers}.
        cpu: CPU cores of {node}.
        gpu: GPUs of {node}.
        memMB: Memory of {node} in MB.
        image: Container image, where the scheduler uses one.
        env: Environment variables of the job: A=1,B=2.
        mounts: Mounts of the container: type=bind,src=/host,dst=/job[,readonly].
        metadata: Metadata of the role: kubernetes=file:///pod.yaml merges that file into its pods.
        max_retries: Number of times that the scheduler restarts a failed job.
        name: Name of the job; its app id begins with it.
    """


def _flags_of_job(on_ranks: bool, gpu: bool, defaults: Mapping[str, object]) -> list[inspect.Parameter]:
    left_out = set() if on_ranks else {"max_retries", "name"} | (set() if gpu else {"gpu"})
    flags = [flag for flag in inspect.signature(_job).parameters.values() if flag.name not in left_out]
    return [flag.replace(default=defaults.get(flag.name, flag.default)) for flag in flags]


def _is_set(value: object, default: object) -> bool:
    return value is not None and value is not False and not (default is None and value in ("", []))


def _words(name: str, value: Any, flag: str | None) -> list[str]:
    values = [str(each) for each in (value if isinstance(value, list) else [value])]
    return values if name == "config" else [flag or f"--{name.replace('_', '-')}", *values]


def _documentation(function: Component, signature: inspect.Signature, on_ranks: bool) -> str:
    """Returns a function's docstring with every flag of a signature, in its order, including the flags of the job."""
    numbers = "cpu, gpu and memMB" if "gpu" in signature.parameters else "cpu and memMB"
    text = (inspect.getdoc(_job) or "").format(node="each node" if on_ranks else "the node", numbers=numbers)
    return _documented(function, signature, text)


def _documented(function: Component, signature: inspect.Signature, defaults: str) -> str:
    """Returns a function's docstring with every flag of a signature; missing flags are taken from another docstring."""
    documented = inspect.getdoc(function) or ""
    meanings = {each.arg_name: each.description or "" for part in (defaults, documented) for each in parse(part).params}
    lines = [f"    {flag}: {textwrap.indent(meanings.get(flag, ''), ' ' * 8).strip()}" for flag in signature.parameters]
    return "\n".join([documented.partition("Args:")[0].rstrip(), "", "Args:", *lines])
