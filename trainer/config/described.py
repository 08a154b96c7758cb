"""Keys as documentation shows them: their types, bounds, defaults and meanings, in Markdown."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import pydantic


class Key(NamedTuple):
    """One key of a section."""

    name: str
    type: str
    default: str
    meaning: str


class Described(NamedTuple):
    """One section. Its path has NAME in place of the name of one thing of many, such as `data.sparse.NAME`."""

    path: str
    meaning: str
    keys: list[Key]


def described(section: type[pydantic.BaseModel]) -> Iterator[Described]:
    """Yields a section and those below it, of which some only hold others and have no keys."""
    schema = section.model_json_schema()
    return _described(schema, schema.get("$defs", {}), "")


def _described(section: dict[str, Any], known: dict[str, Any], path: str) -> Iterator[Described]:
    keys = [
        _key(name, value, name in section.get("required", ()))
        for name, value in section["properties"].items()
        if not _below(value, known)
    ]
    yield Described(path, section.get("description", "").partition("\n\n")[0], keys)
    for name, value in section["properties"].items():
        if below := _below(value, known):
            here = f"{path}.{name}" if path else name
            yield from _described(below, known, f"{here}.NAME" if "additionalProperties" in value else here)


def _below(value: dict[str, Any], known: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the section that a key holds, or holds many of by name; None if the key holds a plain value."""
    many = value.get("additionalProperties")
    reference = value.get("$ref") or (many.get("$ref") if isinstance(many, dict) else None)
    return known[reference.rpartition("/")[2]] if reference else None


def _key(name: str, value: dict[str, Any], required: bool) -> Key:
    default = "required" if required else _toml(value["default"])
    return Key(name, _type(value), default, " ".join(value.get("description", "").split()))


def _type(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return _type(next(option for option in value["anyOf"] if option["type"] != "null"))
    if "enum" in value:
        return ", ".join(f"`{_quoted(option)}`" for option in value["enum"])
    if value["type"] == "array":
        name, _, bounds = _type(value["items"]).partition(" ")
        return f"list of {name}s {bounds}".rstrip()
    return " ".join([{"object": "table"}.get(value["type"], value["type"]), *_bounds(value)])


def _bounds(value: dict[str, Any]) -> list[str]:
    signs = {"exclusiveMinimum": ">", "minimum": "≥", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {_number(value[key])}" for key, sign in signs.items() if key in value]
    return [", ".join(found)] if found else []


def _number(value: float) -> str:
    exponent = int(value).bit_length() - 1
    return f"2^{exponent}" if exponent > 20 and value == 2**exponent else f"{value:g}"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _toml(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list | tuple):
        return f"`[{', '.join(map(_quoted, value))}]`"
    return f"`{_quoted(value)}`"
