"""The base of every configuration section, and of the errors that a wrong one leads to."""

import difflib
from collections.abc import Iterable
from typing import Any, get_args

import pydantic


class Section(pydantic.BaseModel):
    """One section of the configuration: frozen, strictly typed, unknown keys forbidden.

    The string literal under a field is its documentation: it shows in `--help` and in docs/configuration.md.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the known name closest to `name`, or the known names if none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"


def explain(error: pydantic.ValidationError, section: type[Section] = Section, prefix: str = "") -> str:
    """Returns the first thing that is wrong, in one line that names the key, the value and what is allowed.

    Args:
        error: What pydantic says.
        section: What was validated, to find the nearest key to an unknown one.
        prefix: Key of that section, if it is not the root.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, [*filter(None, [prefix]), *first["loc"]]))
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key '{key}'{nearest(str(first['loc'][-1]), _known_keys(section, first['loc'][:-1]))}"
        case "missing":
            return f"'{key}' is missing; it has no default"
        case "model_type" | "dict_type":
            return f"{key} is {first['input']!r}: it must be a section of keys, [{key}]"
        case "value_error":
            return message
    return f"{key} is {first['input']!r}: {message[:1].lower()}{message[1:]}"


def _known_keys(section: Any, path: tuple[int | str, ...]) -> list[str]:
    """Returns the keys of the section at a path; the path may pass tables of named things."""
    for step in path:
        is_section = hasattr(section, "model_fields")
        section = section.model_fields[step].annotation if is_section else get_args(section)[-1]
    return list(section.model_fields)
