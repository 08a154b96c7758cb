"""The base of configuration sections: validation with clear errors, and which keys may change on resume."""

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, ClassVar, TypeVar, get_args, get_origin

import pydantic
from pydantic.fields import FieldInfo

from trainer.core.errors import InputError, nearest

Tree = dict[str, Any]
"""A configuration in the form of TOML: values, lists, and tables of the same."""
S = TypeVar("S", bound="Section")


def _add_meanings(schema: dict[str, Any], section: type[pydantic.BaseModel]) -> None:
    """Adds the documentation under the fields of a section to its schema."""
    from docstring_parser import parse_from_object  # imported here because only help needs it

    for kind in reversed([one for one in section.__mro__ if issubclass(one, Section)]):
        for field in parse_from_object(kind).params:
            schema["properties"][field.arg_name]["description"] = field.description


class Section(pydantic.BaseModel):
    """A section of the configuration: frozen, strictly typed, unknown keys forbidden.

    The string literal under a field is its documentation: it shows in `--help` and in docs/reference/configuration.md.
    """

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        # Pydantic's use_attribute_docstrings would read the source of each section at every start: 0.2 of 2.7 s.
        json_schema_extra=_add_meanings,
    )
    # Keys of earlier versions, each with its default, which is passed over, and the end of the error for other values.
    former: ClassVar[Mapping[str, tuple[Any, str]]] = {}

    @pydantic.model_validator(mode="before")
    @classmethod
    def _pass_over_former(cls, tree: Any) -> Any:
        if not cls.former or not isinstance(tree, dict):
            return tree
        for key, (default, remedy) in cls.former.items():
            if tree.get(key, default) != default:
                raise InputError(f"{{key}}.{key} is {tree[key]!r}, {remedy}")
        return {key: value for key, value in tree.items() if key not in cls.former}


class MayChange:
    """Marks a key that may change when a run is resumed: `key: Annotated[int, MayChange] = 1`.

    A key without the mark counts as deciding the losses. So a forgotten mark refuses a resume, and never lets a run
    continue with other losses unnoticed.
    """


class AsBegun:
    """Marks a key that decides rounding and, left at its default, keeps the value that a resumed run began with."""


def as_begun(section: type[Section], earlier: Tree, now: Tree) -> Tree:
    """Returns `now` with what a run began with in the keys marked `AsBegun` that `now` leaves at their defaults.

    Args:
        section: The root of both trees.
        earlier: The configuration that the run began with, as TOML holds it.
        now: The configuration that it is resumed with.
    """
    tree = deepcopy(now)
    for (*above, name), value in flat(earlier).items():
        _, field, _ = follow(section, (*above, name))
        if field is None or AsBegun not in field.metadata:
            continue
        table, default = tree, field.get_default(call_default_factory=False)
        for step in above:
            table = table.setdefault(step, {})
        if table.get(name, default) == default:
            table[name] = value
    return tree


def flat(tree: Tree, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Returns the values of a tree by path."""
    values: dict[tuple[str, ...], Any] = {}
    for key, value in tree.items():
        values |= flat(value, (*above, key)) if isinstance(value, dict) else {(*above, key): value}
    return values


def follow(section: Any, path: tuple[Any, ...]) -> tuple[Any, FieldInfo | None, tuple[Any, ...]]:
    """Returns the type at a path, its field (None outside sections), and the path of its named thing."""
    kind, field, entry = section, None, ()
    for position, step in enumerate(path, 1):
        if hasattr(kind, "model_fields"):
            field = kind.model_fields.get(step)
            kind = field.annotation if field else None
        elif get_origin(kind) is dict:
            kind, entry = get_args(kind)[-1], path[:position]
    return kind, field, entry


def validate(section: type[S], tree: Tree, source: Callable[[tuple[int | str, ...]], str]) -> S:
    """Returns a section with the values of a tree.

    Args:
        section: The section.
        tree: The values, in the form of TOML.
        source: Returns the beginning of a message about a key.

    Raises:
        InputError: A key or a value is wrong. The message names it and the allowed values.
    """
    try:
        return section.model_validate(tree)
    except pydantic.ValidationError as error:
        raise InputError(source(error.errors()[0]["loc"]) + explain(error, section)) from error


def explain(error: pydantic.ValidationError, section: type[pydantic.BaseModel]) -> str:
    """Describes the first mistake in one line that names the key, the value and the allowed values.

    Args:
        error: Pydantic's error.
        section: The validated section, to find the nearest key to an unknown key.
    """
    first, *others = error.errors(include_url=False)
    key = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "extra_forbidden":
            *above, unknown = first["loc"]
            parent, *_ = follow(section, tuple(above))
            return f"unknown key '{key}'{nearest(str(unknown), parent.model_fields)}"
        case "missing":
            return f"'{key}' is missing; it has no default"
        case "model_type" | "dict_type" if not key:
            return f"it holds a {type(first['input']).__name__}, not keys"
        case "model_type" | "dict_type":
            return f"{key} is {first['input']!r}: it must be a section of keys, [{key}]"
        case "bool_type" if (
            others and others[0]["type"] == "literal_error" and others[0]["loc"][:-1] == first["loc"][:-1]
        ):
            key = key.removesuffix(".bool")  # of the union, to which pydantic adds its member
            return f"{key} is {first['input']!r}: it must be true, false or {others[0]['ctx']['expected']}"
        case "bool_type":
            return f"{key} is {first['input']!r}: it must be true or false"
        case "value_error":  # a section below several keys writes {key} for its own
            return message.replace("{key}", key)
    return f"{key} is {first['input']!r}: {message[:1].lower()}{message[1:]}"


def fixed_values(section: Section) -> dict[str, Any]:
    """Returns the values of the keys without `MayChange`."""
    fields = type(section).model_fields
    return {name: getattr(section, name) for name, field in fields.items() if MayChange not in field.metadata}


def changed_keys(section: type[Section], earlier: Tree, now: Tree) -> Iterator[tuple[str, Any, Any]]:
    """Yields the keys without `MayChange` whose values differ, each with its two values.

    Args:
        section: The root of both trees.
        earlier: The configuration that a run began with, as TOML holds it. A key that it lacks has its default.
        now: The configuration that it is resumed with.
    """
    sides = (earlier, flat(earlier)), (now, flat(now))
    for key in sorted({key for _, values in sides for key in values}):
        _, field, entry = follow(section, key)
        if key[-1] in getattr(follow(section, key[:-1])[0], "former", ()):
            continue
        # A named thing that only one side has, such as a feature, is a change even if all its keys have their defaults.
        default = None if field is None else field.get_default(call_default_factory=False)
        before, after = (values.get(key, default if _has(tree, entry) else None) for tree, values in sides)
        if before != after and not (field and MayChange in field.metadata):
            yield ".".join(key), before, after
    yield from _reordered(section, earlier, now)


def named_on_one_side(section: type[Section], earlier: Tree, now: Tree) -> dict[str, tuple[list[str], list[str]]]:
    """Returns named things, such as features, that only one configuration has.

    Args:
        section: As for `changed_keys`.
        earlier: The same.
        now: The same.

    Returns:
        By the key of their table, such as `data.sparse`: the names that only the earlier configuration has, and those
        that only the other has, without things whose keys may all change.
    """
    found: dict[str, tuple[list[str], list[str]]] = {}
    for side, (tree, other) in enumerate(((earlier, now), (now, earlier))):
        for key in flat(tree):
            _, field, entry = follow(section, key)
            if not entry or (field and MayChange in field.metadata) or _has(other, entry):
                continue
            *table, name = entry
            names = found.setdefault(".".join(table), ([], []))[side]
            if name not in names:
                names.append(name)
    return found


def _reordered(section: Any, earlier: Tree, now: Tree, above: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields the tables whose named things stand in another order, unless all that they hold may change."""
    for name, field in section.model_fields.items():
        kind, before, after = field.annotation, earlier.get(name, {}), now.get(name, {})
        if get_origin(kind) is dict and hasattr(entry := get_args(kind)[1], "model_fields"):
            matters = any(MayChange not in one.metadata for one in entry.model_fields.values())
            if matters and before.keys() == after.keys() and [*before] != [*after]:
                yield above + name, [*before], [*after]
        elif hasattr(kind, "model_fields"):
            yield from _reordered(kind, before, after, f"{above}{name}.")


def _has(tree: Tree, path: tuple[str, ...]) -> bool:
    for step in path:
        if step not in tree:
            return False
        tree = tree[step]
    return True
