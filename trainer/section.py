"""The base of every configuration section, and of the errors that a wrong one leads to."""

import difflib
from collections.abc import Iterable

import pydantic


class Section(pydantic.BaseModel):
    """One section of the configuration: frozen, strictly typed, unknown keys forbidden.

    The string literal under a field is its documentation: it shows in `--help` and in docs/configuration.md.
    """

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'?` for the known name closest to `name`, or the known names if none is close."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else f"; known: {', '.join(known)}"
