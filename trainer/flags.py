"""Command line flags, and one line for each that is wrong."""

import contextlib
import io
import re
from typing import Any

import tyro


def parse(kind: Any, flags: list[str], program: str, default: Any = None) -> Any:
    """Returns what flags make of a default, or what a function returns that is called with them.

    Args:
        kind: A dataclass, a tree of pydantic models, or a function with typed arguments.
        flags: `--key value` or, for the keys of a tree, `--section.key value`; `--help` prints all of them and leaves.
        program: What stands before the flags, for the help text.
        default: An instance of `kind` to begin with.

    Raises:
        ValueError: A flag is unknown or its value wrong; the message names it and what is allowed.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(kind, default=default, args=flags, prog=program, config=(tyro.conf.FlagConversionOff,))
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        raise ValueError(_one_line(said.getvalue())) from None


def _one_line(box: str) -> str:
    """Turns the framed text that tyro prints for an error into one line: the message, and the nearest flag if any."""
    lines = [line.strip("│ ") for line in box.splitlines() if line.startswith("│")]
    rule = next((number for number, line in enumerate(lines) if line.startswith("──")), len(lines))
    message, rest = " ".join(" ".join(lines[:rule]).split()), " ".join(lines[rule:])
    suggestion = re.search(r"Perhaps you meant:.*?(--[\w.-]+)", rest)
    if suggestion:
        message = f"{message}; did you mean {suggestion[1]}?"
    if invalid := re.match(r"Error parsing \S+: \d+ validation errors? for \w+ Value error, (.*?) \[type=", message):
        return invalid[1]
    if invalid := re.match(
        r"Error parsing (\S+): \d+ validation errors? for \w+ (\S+) (.*?) \[type=\w+, input_value=(.*?), input_type",
        message,
    ):
        return f"{invalid[1]}.{invalid[2]} is {invalid[4]}: {invalid[3][0].lower()}{invalid[3][1:]}"
    return message[0].lower() + message[1:]
