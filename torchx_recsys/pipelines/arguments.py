"""Checks and converts the arguments of a component in a pipeline or sweep file."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_origin

from torchx.specs.finder import ComponentNotFoundException, ComponentValidationException, get_component, get_components
from torchx.util.types import decode_optional

from trainer.core.errors import InputError, nearest


@dataclass(frozen=True)
class Signature:
    """A component's parameters.

    Attributes:
        prefix: The prefix of `component` and `arguments` in messages, such as `steps.train.`.
        parameters: The parameters by name.
        defaults: Defaults beside the component's own, as text.
    """

    prefix: str
    parameters: Mapping[str, inspect.Parameter]
    defaults: Mapping[str, str]

    @classmethod
    def of(cls, component: str, prefix: str, defaults: Mapping[str, str]) -> "Signature":
        """Finds a component.

        Raises:
            InputError: There is no such component.
        """
        try:
            function = get_component(component).fn
        except (ComponentNotFoundException, ComponentValidationException) as error:
            known = get_components()
            raise InputError(
                f"{prefix}component: unknown component '{component}'{nearest(component, known)}"
            ) from error
        return cls(prefix, inspect.signature(function).parameters, defaults)

    def words(self, arguments: Mapping[str, Any]) -> list[str]:
        """Returns arguments as `torchx run` takes them.

        Raises:
            InputError: An argument is unknown, missing or of a wrong type.
        """
        for name in arguments:
            if name not in self.parameters:
                raise InputError(f"{self.prefix}arguments: unknown argument '{name}'{nearest(name, self.parameters)}")
        words, last = [], []
        for name, parameter in self.parameters.items():
            key = f"{self.prefix}arguments.{name}"
            if parameter.kind is parameter.VAR_POSITIONAL:
                last = ["--", *_list(key, arguments[name])] if name in arguments else []
            elif name in arguments:
                words.append(f"--{name}={_text(key, parameter, arguments[name])}")
            elif parameter.default is parameter.empty and name not in self.defaults:
                raise InputError(f"{key} is missing; the component has no default for it")
        return words + last

    def value(self, name: str, arguments: Mapping[str, Any], key: str) -> Any:
        """Returns an argument as the component gets it: as given, or a default.

        Raises:
            InputError: The component has no such argument.
        """
        if name not in self.parameters:
            raise InputError(f"{key}: unknown argument '{name}'{nearest(name, self.parameters)}")
        if name in arguments or name in self.defaults:
            return arguments.get(name, self.defaults.get(name))
        default = self.parameters[name].default
        return None if default is inspect.Parameter.empty else default


def _text(key: str, parameter: inspect.Parameter, value: Any) -> str:
    kind = decode_optional(parameter.annotation)
    if get_origin(kind) is list or kind is list:
        return ",".join(_without_commas(key, each) for each in _list(key, value))
    if get_origin(kind) is dict or kind is dict:
        if not isinstance(value, dict):
            raise InputError(f"{key} is {value!r}: must be a table, {{ A = 1, B = 2 }}")
        return ",".join(f"{name}={_without_commas(key, _scalar(key, each))}" for name, each in value.items())
    allowed = {bool: (bool,), int: (int,), float: (int, float), str: (str, int, float)}.get(
        kind, (str, int, float, bool)
    )
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
        raise InputError(f"{key} is {value!r}: must be {words.get(kind, 'a text')}")
    return str(value)


def _list(key: str, value: Any) -> list[str]:
    if not isinstance(value, list):
        raise InputError(f"{key} is {value!r}: must be a list")
    return [_scalar(key, each) for each in value]


def _scalar(key: str, value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise InputError(f"{key}: {value!r} must be a text or a number")
    return str(value)


def _without_commas(key: str, text: str) -> str:
    if "," in text:
        raise InputError(f"{key}: '{text}' has a comma, by which TorchX separates values")
    return text
