"""Checks the words behind a component of `torchx run` before TorchX's argparse prints a page of usage."""

import argparse
import inspect
import shlex
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from torchx.specs.finder import ComponentNotFoundException, ComponentValidationException, get_component

from components.cli.base import errors_in_one_line
from trainer.core.errors import InputError

Parsed = tuple[argparse.Namespace, list[str]]


def flags_of(parser: argparse.ArgumentParser) -> set[str]:
    """Returns the flags of a command line."""
    return {flag for action in parser._actions for flag in action.option_strings}


def complete_words(component: str, words: Sequence[str], of_run: Collection[str]) -> list[str]:
    """Returns the words behind a component, with `True` added to boolean flags without a value.

    Args:
        component: The name of the component.
        words: The words behind it.
        of_run: The flags of `torchx run` itself.

    Raises:
        InputError: A flag is not the component's, or has no value. The message names the place where it belongs.
    """
    try:
        parameters = inspect.signature(get_component(component).fn).parameters.values()
    except (ComponentNotFoundException, ComponentValidationException):
        return [*words]  # TorchX reports the fault of the component
    kinds = {f"--{one.name}" if len(one.name) > 1 else f"-{one.name}": one.annotation for one in parameters}
    flags = _Flags(component, kinds, any(one.kind is one.VAR_POSITIONAL for one in parameters), of_run)
    return flags.complete(deque(words))


@dataclass(frozen=True)
class _Flags:
    """The flags of a component with the types of their values, and whether it takes any words after them."""

    component: str
    kinds: dict[str, Any]
    takes_rest: bool
    of_run: Collection[str]

    def complete(self, rest: deque[str]) -> list[str]:
        done: list[str] = []
        while rest and rest[0].startswith("-") and rest[0] != "--":  # any other word starts the last, free arguments
            done.append(rest.popleft())
            flag, equals, _ = done[-1].partition("=")
            if flag not in self.kinds and not self._is_short_for_one(flag):
                raise InputError(self._place_of(flag, done[-1], rest))
            if equals or flag == "--help" or flag[:2] not in ("--", flag):  # such as -j1x2
                continue
            if rest and not rest[0].startswith("--"):
                done.append(rest.popleft())
            elif self.kinds.get(flag) is bool:
                done.append("True")
            else:
                raise InputError(f"{flag} has no value; write {flag} VALUE")
        return [*done, *rest]

    def _is_short_for_one(self, flag: str) -> bool:
        """Returns whether argparse knows a flag: with its value in the same word, or shortened."""
        return flag == "--help" or flag[:2] in self.kinds or sum(one.startswith(flag) for one in self.kinds) == 1

    def _place_of(self, flag: str, word: str, rest: deque[str]) -> str:
        """Returns the place where an unknown flag belongs."""
        run, after = f"torchx run {self.component}", [word, *(one for one in [*rest][:1] if one[:1] != "-")]
        if flag in self.of_run:
            return f"{flag} is a flag of torchx run; write it before the component: torchx run {shlex.join(after)} ..."
        if "." in flag and self.takes_rest:
            return f"{flag} is a key of the configuration; write it last, behind --: {run} ... -- {shlex.join(after)}"
        close = get_close_matches(flag, self.kinds, n=1)
        return f"{self.component} has no flag {flag}; " + (
            f"did you mean {close[0]}?" if close else f"see {run} --help"
        )


def parse_all(parse: Callable[..., Parsed], *rest: Any) -> Parsed:
    """Parses the words of `torchx run`; an unknown flag before the component ends the program."""
    namespace, unknown = parse(*rest)
    if unknown:
        places = "flags of a component come behind its name, and keys of the configuration last, behind --"
        with errors_in_one_line("torchx run"):
            raise InputError(f"{unknown[0]} is no flag of torchx run; {places}")
    return namespace, unknown
