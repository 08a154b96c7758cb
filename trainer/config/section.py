"""The base of every configuration section, and of the errors that a wrong one leads to."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo

from trainer.core.errors import nearest

Tree = dict[str, Any]
"""A configuration as TOML holds it: values, lists, and tables of the same."""


class Section(pydantic.BaseModel):
    """One section of the configuration: frozen, strictly typed, unknown keys forbidden.

    The string literal under a field is its documentation: it shows in `--help` and in docs/configuration.md.
    """

    model_config = pydantic.ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class MayChange:
    """Marks a key that may change when a run is resumed: `key: Annotated[int, MayChange] = 1`.

    A key without the mark decides the losses, or is taken to: forgetting a mark refuses a resume, and never lets one
    continue with other losses in silence.
    """


def changed_keys(section: type[Section], earlier: Tree, now: Tree) -> Iterator[tuple[str, Any, Any]]:
    """Yields the keys without `MayChange` whose values differ, each with its two values.

    Args:
        section: The root of both trees.
        earlier: The configuration that a run began with, as TOML holds it. A key that it lacks has its default.
        now: The configuration that it is resumed with.
    """
    sides = (earlier, _flat(earlier)), (now, _flat(now))
    for key in sorted({key for _, flat in sides for key in flat}):
        field, entry = _field(section, key)
        # A named thing that only one side has, such as a feature, is a change even if all its keys have their defaults.
        default = None if field is None else field.get_default(call_default_factory=False)
        before, after = (flat.get(key, default if _has(tree, entry) else None) for tree, flat in sides)
        if before != after and not (field and MayChange in field.metadata):
            yield ".".join(key), before, after


def _has(tree: Tree, path: tuple[str, ...]) -> bool:
    for step in path:
        if step not in tree:
            return False
        tree = tree[step]
    return True


def _flat(tree: Tree, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, (*above, key)) if isinstance(value, dict) else {(*above, key): value}
    return flat


def _field(section: Any, path: tuple[str, ...]) -> tuple[FieldInfo | None, tuple[str, ...]]:
    """Returns the field at a path, None if no section has it, and the path of the named thing that it belongs to."""
    field, entry = None, ()
    for position, step in enumerate(path, 1):
        if hasattr(section, "model_fields"):
            field = section.model_fields.get(step)
            section = field.annotation if field else None
        elif get_origin(section) is dict:
            section, entry = get_args(section)[-1], path[:position]
    return field, entry


def explain(error: pydantic.ValidationError, section: type[pydantic.BaseModel]) -> str:
    """Returns the first thing that is wrong, in one line that names the key, the value and what is allowed.

    Args:
        error: What pydantic raised.
        section: What was validated, to find the nearest key to an unknown one.
    """
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "extra_forbidden":
            return f"unknown key '{key}'{nearest(str(first['loc'][-1]), _known_keys(section, first['loc'][:-1]))}"
        case "missing":
            return f"'{key}' is missing; it has no default"
        case "model_type" | "dict_type":
            return f"{key} is {first['input']!r}: it must be a section of keys, [{key}]"
        case "bool_type":
            return f"{key} is {first['input']!r}: it must be true or false"
        case "value_error":
            return message
    return f"{key} is {first['input']!r}: {message[:1].lower()}{message[1:]}"


def _known_keys(section: Any, path: tuple[int | str, ...]) -> list[str]:
    """Returns the keys of the section at a path; the path may pass tables of named things."""
    for step in path:
        is_section = hasattr(section, "model_fields")
        section = section.model_fields[step].annotation if is_section else get_args(section)[-1]
    return list(section.model_fields)
