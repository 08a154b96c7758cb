"""Help texts of the command line: the flags of one command, and the keys of the configuration."""

import inspect
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import pydantic
from docstring_parser import parse

from trainer.config.root import Config
from trainer.core.errors import InputError, nearest

OF_CONFIG = """\
Any key of the configuration can be replaced: --SECTION.KEY VALUE, such as --train.steps 100.
--without NAME ... leaves features out, and those that are made of columns of these names.
--help-config lists the keys to know first, and the sections; --help-config SECTION lists all keys of one."""

# The keys that most configurations set, by section: those of presets and tutorials, and what a first run needs.
FIRST = {
    "data": "train validation test reader labels groups global_batch_size",
    "data.segments": "path",
    "data.dense.NAME": "column width transform missing mean std",
    "data.sparse.NAME": "rows ids table column pooling max_ids weights buckets hotness",
    "model": "name embedding_dim dense_layers over_layers target history item_features",
    "tasks.NAME": "label loss weight metrics",
    "optimizer.sparse": "name learning_rate",
    "optimizer.sparse.schedule": "warmup_steps decay decay_steps",
    "optimizer.dense": "name learning_rate weight_decay",
    "optimizer.dense.schedule": "warmup_steps decay decay_steps",
    "optimizer.ema": "decay",
    "comms": "forward backward",
    "planner": "mode plan sharding_types hardware",
    "train": "steps epochs seed precision compile",
    "train.stop_early": "metric patience",
    "evaluate": "every_steps metrics final",
    "finetune": "checkpoint",
    "checkpoint": "every_steps every_minutes",
    "checkpoint.keep": "newest best",
    "report": "interval_steps tensorboard",
}
OF_SECTION = "--help-config SECTION shows all keys of a section and of those below it."


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


NOTHING = "unset", "default `[]`", "default `false`"  # defaults that go without saying


def command_help(function: Callable[..., Any], arguments: type[pydantic.BaseModel], program: str, example: str) -> str:
    """Returns what a command does, its own flags and an example.

    Args:
        function: The command; its docstring describes it and its flags.
        arguments: Its flags and words as a section.
        program: The words before them.
        example: What may follow the name of the command.
    """
    docs, parameters = parse(inspect.getdoc(function) or ""), inspect.signature(function).parameters
    meanings = {_dashed(param.arg_name): param.description or "" for param in docs.params}
    words = {_dashed(one.name) for one in parameters.values() if one.kind is one.POSITIONAL_ONLY}
    ((_, _, keys),) = described(arguments)
    usage, flags = ["usage:", program], []
    config = parameters.get("config")
    if config:
        usage.append("CONFIG" if config.default is config.empty else "[CONFIG]")
    for key in keys:
        flag, value = f"--{key.name}", key.name.upper()
        if key.name in words:
            usage.append(f"[{value}]")
        elif key.default == "required":
            usage.append(f"{flag} {value}")
        flags.append((value if key.name in words else flag, _facts(key._replace(meaning=meanings[key.name]))))
    usage += ["[FLAGS]", *["[--SECTION.KEY VALUE ...]"] * bool(config)]
    for one in parameters.values():
        if one.kind is one.VAR_POSITIONAL:
            usage.append("[-- ...]")
            flags.append(("-- ...", meanings[one.name].replace("`", "")))
    about = [docs.short_description, *(docs.long_description or "").split("\n\n")]
    blocks = [" ".join(usage), *filter(None, about)]
    example_line = f"Example: {program} {example}".rstrip()
    return "\n\n".join([*map(_wrapped, blocks), _columns(flags), *[OF_CONFIG] * bool(config), example_line])


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def config_help(name: str) -> str:
    """Returns the keys of a section and of those below it; without a name, the sections with the keys to know first.

    Raises:
        InputError: There is no such section.
    """
    _, *sections = described(Config)
    if not name:
        return _sections(sections)
    found = [section for section in sections if _is_within(section.path, name)]
    if not found:
        known = nearest(name, [section.path for section in sections])
        raise InputError(f"--help-config is '{name}', which is no section{known}")
    return "\n\n".join(
        f"[{path}] {meaning}\n{_columns((key.name, _facts(key)) for key in keys)}".rstrip()
        for path, meaning, keys in found
    )


def _sections(sections: list[Described]) -> str:
    """Returns the sections with keys to know first, with these keys; the other sections by name alone."""
    first = [section for section in sections if section.path in FIRST]
    width = max(len(section.path) for section in first) + 2
    lines = [line for section in first for line in (f"{section.path:<{width}}{_summary(section)}", _first_of(section))]
    others = " ".join(section.path for section in sections if section.path not in FIRST)
    return "\n\n".join(["\n".join(lines), _wrapped(f"Other sections: {others}"), OF_SECTION])


def _summary(section: Described) -> str:
    return section.meaning.partition(". ")[0].partition(":")[0].rstrip(".")


def _first_of(section: Described) -> str:
    names = FIRST[section.path].split()
    more = f", and {len(section.keys) - len(names)} more" if len(section.keys) > len(names) else ""
    return textwrap.fill(" ".join(names) + more, _width(), initial_indent="    ", subsequent_indent="    ")


def _is_within(path: str, name: str) -> bool:
    return any(f"{one}.".startswith(f"{name}.") for one in (path, path.replace(".NAME", "")))


def _facts(key: Key) -> str:
    default = key.default if key.default in ("required", "unset") else f"default {key.default}"
    facts = [key.type] if default in NOTHING else [key.type, default]
    return f"{key.meaning} ({'; '.join(facts)})".replace("`", "")


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 120)


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), _width(), break_on_hyphens=False)


def _columns(rows: Iterable[tuple[str, str]]) -> str:
    """Returns names and their meanings, in two columns."""
    rows = [*rows]
    indent = max((len(name) for name, _ in rows), default=0) + 4
    return "\n".join(
        textwrap.fill(
            " ".join(text.split()),
            _width(),
            initial_indent=f"  {name}".ljust(indent),
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
        )
        for name, text in rows
    )


def described(section: type[pydantic.BaseModel]) -> Iterator[Described]:
    """Yields a section and the sections below it. Some only hold other sections and have no keys."""
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
    """Returns the section that a key holds, once or many times by name; None if the key holds a plain value."""
    many = value.get("additionalProperties")
    reference = value.get("$ref") or (many.get("$ref") if isinstance(many, dict) else None)
    return known[reference.rpartition("/")[2]] if reference else None


def _key(name: str, value: dict[str, Any], required: bool) -> Key:
    default = "required" if required else _toml(value["default"])
    return Key(name, _type(value), default, " ".join(value.get("description", "").split()))


def _type(value: dict[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(_type(option) for option in value["anyOf"] if option["type"] != "null")
    if "enum" in value:
        return ", ".join(f"`{_quoted(option)}`" for option in value["enum"])
    if value["type"] == "array" and "enum" in value["items"]:
        return f"list of {_type(value['items'])}"
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
