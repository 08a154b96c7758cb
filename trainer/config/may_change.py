"""Which keys may change when a run is resumed."""

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from trainer.core.section import MayChange, Section, Tree, flat, follow


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
