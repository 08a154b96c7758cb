"""Command lines: the arguments of a function, and values that replace values of a configuration file.

The values are put onto the tree of the file before the tree is validated.

No library of command lines keeps what users are promised: keys of named things (`--data.sparse.NAME.rows 9`), lists as
words, dashes or underscores, and a mistake in one line that names the nearest flag.

* pydantic-settings 2.14: no keys of named things, no lists as words, one spelling. A wrong flag prints 134 lines
  without a suggestion; a wrong value (`--train.steps abc`) is reported without its key. Parses in 110 ms.
* jsonargparse 4.53: lists only as `[8,4]`. `--data.sparse.NAME.KEY` needs all required keys again on the command line,
  and NAME may hold no dot. `--train.step` is taken for `--train.steps` in silence. A wrong flag prints 151 lines,
  `--help` 1,036. Parses in 600 ms.
* tyro: begins with a valid configuration, so a flag cannot complete a file. Errors are boxes of text, and every help
  lists all keys.

Either would replace the reading of flags and their types, some 80 lines here, and would need code of its own for what
is missing. This file parses in 36 ms.
"""

import difflib
import functools
import inspect
import os
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from types import GenericAlias, UnionType
from typing import Annotated, Any, NoReturn, TypeGuard, Union, get_args, get_origin, get_type_hints

import pydantic

from trainer.config.help import command_help, config_help
from trainer.config.root import Config, leave_out, load_tree, subtable, without_replaced
from trainer.core.errors import InputError
from trainer.core.section import Section, Tree, flat, validate

Path = tuple[str, ...]
HINTS = 3  # most flags to suggest for an unknown one
HELP_CONFIG = "--help-config"
WITHOUT = ("without",)
OF_CONFIG = ("config", "config_words")  # arguments that are no flags of their own


def parse(function: Callable[..., Any], words: list[str], program: str, example: str = "") -> functools.partial[Any]:
    """Returns a function, not yet called, with the arguments of a command line bound.

    An argument `config` is the first word, which names a configuration; `--section.key value` replaces values in it. If
    `config` has a default, the word may be left out. An argument `config_words` gets both as one would type them again.
    Positional-only arguments are single words, `*arguments` all words after `--`, and others `--name value`.

    Args:
        function: A function with typed arguments. Its docstring is the help text.
        words: The command line. `--help` prints the function's flags, `--help-config SECTION` keys of the
            configuration; both end the process.
        program: The words before those, for the help text.
        example: Words that may follow them, for the help text.

    Raises:
        InputError: The configuration, a flag or a value is wrong; the message names it and what is allowed.
    """
    parameters = inspect.signature(function).parameters
    takes_config = "config" in parameters
    passes_on = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
    end = words.index("--") if passes_on and "--" in words else len(words)
    words, after = words[:end], words[end + 1 :]
    has_name = takes_config and words and not words[0].startswith("-")
    name, rest = (words[0], words[1:]) if has_name else (None, words)
    if not {"-h", "--help"}.isdisjoint(words):
        _leave_with(command_help(function, _arguments_of(function), program, example))
    if takes_config and (section := _section_asked_for(words)) is not None:
        _leave_with(config_help(section))
    if takes_config and not name and parameters["config"].default is inspect.Parameter.empty:
        raise InputError(f"CONFIG is missing: a TOML file or the name of a preset, as in `{program} movielens`")
    return functools.partial(_bind(function, rest, name), *after)


def _leave_with(text: str) -> NoReturn:
    print(text)
    raise SystemExit(0)


def _section_asked_for(words: list[str]) -> str | None:
    """Returns the word after `--help-config`, or an empty one; None without that flag."""
    for word, following in pairwise([*words, ""]):
        flag, equals, value = word.partition("=")
        if flag == HELP_CONFIG:
            return value if equals else following
    return None


def _bind(function: Callable[..., Any], words: list[str], name: str | None) -> functools.partial[Any]:
    parameters = inspect.signature(function).parameters.values()
    arguments, tree = _arguments_of(function), load_tree(name) if name else {}
    keys = (dict(_keys(Config, tree, words)) | {WITHOUT: list[str]} if name else {}) | dict(_keys(arguments, {}, words))
    positional = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
    given = _read(words, keys, [(_dashed(one),) for one in positional])
    without = given.pop(WITHOUT, [])
    own = {path[0]: given.pop(path) for path in [*given] if len(path) == 1}  # keys of the configuration have sections
    own = {key: _split(value) if isinstance(value, list | tuple) else value for key, value in own.items()}
    if name and os.path.isfile(f"{name}/config.toml") and "out" in arguments.model_fields:
        own.setdefault("out", name)
    values = {key.replace("-", "_"): value for key, value in _validate_arguments(arguments, own)}
    if name:
        values["config"] = _validate_config(leave_out(tree, without, "--without"), given, name)
        if OF_CONFIG[1] in inspect.signature(function).parameters:
            values[OF_CONFIG[1]] = [
                name,
                *(word for path, value in given.items() for word in _words(path, value)),
                *(_words(WITHOUT, without) if without else ()),
            ]
    return functools.partial(function, *(values.pop(one) for one in positional), **values)


def _arguments_of(function: Callable[..., Any]) -> type[Section]:
    """Returns a function's arguments as a section, under their names as flags, without the configuration."""
    hints = get_type_hints(function, include_extras=True)
    fields = {
        _dashed(name): (hints[name], ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if name not in OF_CONFIG and parameter.kind is not parameter.VAR_POSITIONAL
    }
    with warnings.catch_warnings(
        category=UserWarning, action="ignore"
    ):  # of names such as json, a method of pydantic's
        return pydantic.create_model(function.__name__, __base__=Section, **fields)  # pyrefly: ignore[no-matching-overload]


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _keys(section: type[Section], tree: Tree, words: list[str], above: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields every key of a section with its type. Named things are those in the tree and those in flags."""
    for name, field in section.model_fields.items():
        path, kind, below = (*above, name), field.annotation, subtable(tree, name)
        entry = get_args(kind)[1] if get_origin(kind) is dict else None
        if _is_section(kind):
            yield from _keys(kind, below, words, path)
        elif entry is None:
            yield path, kind
        elif _is_section(entry):
            for one in dict.fromkeys([*_named(words, path), *below]):
                yield from _keys(entry, subtable(below, one), words, (*path, one))
        else:  # a table that no section describes
            for key, value in flat(below, path).items():
                yield key, GenericAlias(list, type((*value, "")[0])) if isinstance(value, list) else type(value)
    for name, (default, _) in section.former.items():  # for validation to judge
        yield (*above, name), type(default)


def _is_section(kind: Any) -> TypeGuard[type[Section]]:
    return inspect.isclass(kind) and issubclass(kind, Section)


def _named(words: list[str], table: Path) -> Iterator[str]:
    """Yields what may be the names of a table's entries in flags: NAME in `--data.sparse.NAME.rows`.

    A name may hold dots, and a section of an entry may follow it.
    """
    start = _flag(table) + "."
    for word in words:
        key = word.partition("=")[0]
        if _dashed(key).startswith(start) and "." in key[len(start) :]:
            parts = key[len(start) :].split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts)))


def _flag(path: Path) -> str:
    return _dashed("--" + ".".join(path))


def _read(words: list[str], kinds: dict[Path, Any], positional: list[Path]) -> dict[Path, Any]:
    """Returns the values that words give to keys; the last one counts if there are several."""
    paths, given, rest, free = {_flag(path): path for path in kinds}, {}, deque(words), deque(positional)
    while rest:
        key, equals, value = rest.popleft().partition("=")
        if path := paths.get(_dashed(key)):
            values = [value] if equals else []
        elif key.startswith("-"):
            raise InputError(f"unknown flag {key}; {_nearest(key, kinds)}{_only_of_file(key)}")
        elif free:
            path, values = free.popleft(), [key + equals + value]
        else:
            raise InputError(f"unexpected '{key + equals + value}'; every value follows its --flag")
        many, is_switch = _is_many(kinds[path]), kinds[path] is bool and len(path) == 1
        while rest and not rest[0].startswith("--") and (many or not values):
            values.append(rest.popleft())
        if not values and is_switch:
            values = ["True"]
        if not values and not many:
            raise InputError(f"missing value for {key}")
        given[path] = _convert(values, kinds[path])
    return given


def _nearest(flag: str, known: Iterable[Path]) -> str:
    """Returns a hint: flags with all parts of `flag`, such as --train.steps for --steps, or a flag spelled alike.

    They are spelled as in the file, so that the name of one's own module stays that.
    """
    name, names = _dashed(flag.lstrip("-")), {_dashed(".".join(path)): ".".join(path) for path in known}
    close = [one for one in names if _has_parts(one, name)] or difflib.get_close_matches(name, names, n=1)
    return (
        f"did you mean --{' or --'.join(names[one] for one in close[:HINTS])}?" if close else "--help lists all flags"
    )


def _only_of_file(flag: str) -> str:
    """Returns what else there is to say about an unknown flag of a table that no section describes."""
    above = [".".join(path) for path in _undescribed(Config) if _dashed(flag).startswith(_flag(path) + ".")]
    return f" (in [{above[0]}] a flag changes only what the file has)" if above else ""


def _undescribed(section: type[Section], above: Path = ()) -> Iterator[Path]:
    """Yields the tables that no section describes, whose keys are those of the file."""
    for name, field in section.model_fields.items():
        if _is_section(field.annotation):
            yield from _undescribed(field.annotation, (*above, name))
        elif get_origin(field.annotation) is dict and not _is_section(get_args(field.annotation)[1]):
            yield (*above, name)


def _has_parts(name: str, wanted: str) -> bool:
    parts = iter(name.split("."))
    return all(part in parts for part in wanted.split("."))  # in this order: `in` takes from the iterator


def _words(path: Path, value: Any) -> list[str]:
    """Returns a flag with its value as they are typed."""
    return [_flag(path), *map(str, value if isinstance(value, list) else [value])]


def _is_many(kind: Any) -> bool:
    return any(get_origin(one) in (list, tuple) for one in (kind, *get_args(kind)))


def _split(words: list[Any] | tuple[Any, ...]) -> list[Any] | tuple[Any, ...]:
    """Returns words that commas separate, as components take them, as several; a file may have a comma in its name."""
    parts = [
        part
        for word in words
        for part in (word.split(",") if "," in str(word) and not os.path.exists(word) else [word])
    ]
    return type(words)(parts)


def _convert(words: list[str], kind: Any) -> Any:
    """Returns words as TOML would hold a value of a type; other words stay, for validation to refuse."""
    if get_origin(kind) is Annotated:
        return _convert(words, get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        kinds = get_args(kind)
        several = [one for one in kinds if len(words) > 1 and _is_many(one)]
        return None if words == ["None"] else _convert(words, [*several, *kinds][0])
    if get_origin(kind) in (list, tuple):
        return get_origin(kind)(_convert([word], get_args(kind)[0]) for word in words)
    if kind is bool:  # pydantic takes yes, on and 1 for true as well
        return {"true": True, "false": False}.get(words[0].lower(), words[0])
    try:
        return pydantic.TypeAdapter(kind).validate_python(words[0])
    except pydantic.ValidationError:
        return words[0]


def _validate_arguments(section: type[Section], given: Tree) -> Section:
    for name, field in section.model_fields.items():
        if field.is_required() and name not in given:
            raise InputError(f"--{name} is missing; --help describes it")
    return validate(section, given, lambda _: "--")


def _validate_config(tree: Tree, given: dict[Path, Any], name: str) -> Config:
    """Returns the configuration of a file's tree, with the values of flags in place of the file's."""
    for path in given:
        _put(tree, path, given)
    return validate(Config, tree, lambda key: _source(key, given, name))


def _put(tree: Tree, path: Path, given: Mapping[Path, Any]) -> None:
    """Puts the value of a flag into a tree, in place of the value, or of the key that it is the alternative to."""
    *above, key = path
    for step in above:
        tree = tree.setdefault(step, {})
        if not isinstance(tree, dict):  # which validation refuses
            return
    kept = without_replaced(tree, {one[-1]: value for one, value in given.items() if one[:-1] == path[:-1]})
    for replaced in tree.keys() - kept.keys():
        del tree[replaced]
    tree[key] = given[path]


def _source(key: tuple[int | str, ...], given: Iterable[Path], name: str) -> str:
    """Returns what stands before a message about a key: which of the flags and the file has it wrong."""
    if any(key[: len(path)] == path for path in given):
        return "--"
    if any(path[: len(key)] == key for path in given):
        return ""
    return f"configuration '{name}': "
