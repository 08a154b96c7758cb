"""Command line flags, and one line for each that is wrong."""

import contextlib
import difflib
import functools
import inspect
import io
import re
from collections.abc import Callable
from typing import Any

import pydantic
import tyro

from trainer.config.section import explain
from trainer.core.errors import InputError


def parse(kind: Any, flags: list[str], program: str, default: Any = None) -> Any:
    """Returns what flags make of a default, or of a function: the function with its arguments bound, yet to be called.

    Args:
        kind: A dataclass, a tree of pydantic models, or a function with typed arguments.
        flags: `--key value` or, for the keys of a tree, `--section.key value`; `--help` prints all of them and leaves.
        program: What stands before the flags, for the help text.
        default: An instance of `kind` to begin with.

    Raises:
        InputError: A flag is unknown or its value wrong; the message names it and what is allowed.
    """
    target = _later(kind) if inspect.isfunction(kind) else kind
    options = {} if default is None else {"default": default}
    read = functools.partial(tyro.cli, target, prog=program, config=(tyro.conf.FlagConversionOff,), **options)
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return read(args=flags)
    except pydantic.ValidationError as error:
        raise InputError(explain(error)) from error
    except SystemExit as stop:
        if not stop.code:
            read(args=flags)  # once more, now on the console: the help text
        raise InputError(_explain(stop, printed.getvalue(), read)) from None


def _later(function: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """Returns what binds a function's arguments, with its signature and documentation."""

    @functools.wraps(function)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], Any]:
        return functools.partial(function, *args, **kwargs)

    return bind


def _explain(stop: SystemExit, printed: str, read: Callable[..., Any]) -> str:
    """Returns in one line what tyro refused; it prints a title, the message, and more, with rules between them."""
    _, message, *more = (" ".join(part.split()) for part in re.split(r"^ *-+ *$", printed, flags=re.MULTILINE))
    if error := _validation_error(stop):
        section = re.match(r"Error parsing \w+\.(\S+):", message)
        return explain(error, prefix=section[1].removeprefix("settings.") if section else "")
    if found := re.search(r"Unrecognized options: ([^\s,]+)", " ".join([message, *more])):
        return _explain_unknown(found[1], read)
    if found := re.match(r"Missing from .*?: (--\S+) (.*?) \(required\)", message):
        return f"{found[1]} is missing; it takes {found[2]}"
    if found := re.match(r"Error parsing (--\S+): .*?(\['.*?'\]|'.*?')", message):
        takes = re.search(r"Argument helptext:\s+--\S+ (.*?) *$", printed, flags=re.MULTILINE)
        return f"{found[1]} is {found[2].strip('[]')}; it takes {takes[1] if takes else 'another value'}"
    return message[:1].lower() + message[1:]


def _validation_error(error: BaseException | None) -> pydantic.ValidationError | None:
    """Returns the pydantic error that led to another, if one did."""
    while error is not None:
        if isinstance(error, pydantic.ValidationError):
            return error
        error = error.__context__
    return None


def _explain_unknown(word: str, read: Callable[..., Any]) -> str:
    if not word.startswith("-"):
        return f"unexpected '{word}'; every value follows its --flag"
    helptext = io.StringIO()
    with contextlib.redirect_stdout(helptext), contextlib.suppress(SystemExit):
        read(args=["--help"])
    known = re.findall(r"^ +(--[\w.-]+)", helptext.getvalue(), re.MULTILINE)
    close = difflib.get_close_matches(word.partition("=")[0].replace("_", "-"), known, n=1)
    return f"unknown flag {word}; " + (f"did you mean {close[0]}?" if close else "--help lists all flags")
