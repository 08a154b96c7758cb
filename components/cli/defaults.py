"""Defaults of commands from a site's file, in the format of `.torchxconfig`; a user's own file takes precedence."""

import configparser
import inspect
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_origin

from torchx.runner import config
from torchx.specs import CfgVal, get_type_name, runopt, runopts
from torchx.specs.finder import get_component
from torchx.util.types import decode, decode_optional, is_bool, is_primitive

SITE_FILE = "/etc/torchx-recsys.ini"
SITE_VARIABLE = "TORCHX_RECSYS_SITE"

CLI_KEYS = {"cli:run": ("component", "scheduler", "workspace"), "cli:list": ("scheduler",)}
# Start of the error about an option of a scheduler, or about an argument of a component.
OPTION = re.compile("(?:(?P<cfg>-cfg )|--?)(?P<key>[\\w-]+)[= ]")
OTHER_SECTIONS = ("component:", "torchx:tracker", "tracker:")


class DefaultsError(Exception):
    """A file with defaults cannot be used; the message is one line that names the file and the key."""


@dataclass(frozen=True)
class Default:
    """A line of a file with defaults."""

    file: str
    section: str
    key: str
    value: str

    def wrong_value(self, allowed: str) -> DefaultsError:
        """Returns the error of a value that cannot be used."""
        return DefaultsError(f"{self.file}: [{self.section}] {self.key} = {self.value}: must be {allowed}")

    def wrong_key(self, allowed: Iterable[str]) -> DefaultsError:
        """Returns the error of an unknown key."""
        return DefaultsError(f"{self.file}: [{self.section}] {self.key}: must be one of {', '.join(sorted(allowed))}")


_find_users_configs = config.find_configs


def find_configs(dirs: Iterable[str] | None = None) -> list[str]:
    """Returns the files with defaults in order of precedence, the site's last.

    Raises:
        DefaultsError: A file cannot be read.
    """
    try:
        files = [*_find_users_configs(dirs), *_site_files()]
    except FileNotFoundError as error:  # the file that TORCHXCONFIG names
        raise DefaultsError(str(error)) from error
    for file in files:
        _read(file)
    return files


# TorchX finds all its defaults through this function, and has no place for a file of lower priority.
config.find_configs = find_configs


def check_sections(schedulers: Collection[str]) -> None:
    """Refuses unknown sections of the site's file, and wrong defaults of the commands themselves.

    Raises:
        DefaultsError: A section, a key or a value is wrong.
    """
    for file in _site_files():
        for section in _read(file).sections():
            if section not in (*schedulers, *CLI_KEYS) and not section.startswith(OTHER_SECTIONS):
                allowed = f"a scheduler ({', '.join(schedulers)}), component:NAME, {' or '.join(CLI_KEYS)}"
                raise DefaultsError(f"{file}: [{section}]: must be {allowed}")
        for section, keys in CLI_KEYS.items():
            for line in _lines(file, section):
                if line.key not in keys:
                    raise line.wrong_key(keys)
                if line.key == "scheduler" and line.value not in schedulers:
                    raise line.wrong_value(f"one of {', '.join(schedulers)}")


def check_options(scheduler: str, options: runopts) -> None:
    """Refuses wrong defaults of a scheduler's options; TorchX itself warns of a user's unknown options.

    Raises:
        DefaultsError: A key or a value is wrong.
    """
    site = _site_files()
    for line in (line for file in config.find_configs() for line in _lines(file, scheduler)):
        option = options.get(line.key)
        if option is None and line.file in site:
            raise line.wrong_key(name for name, _ in options)
        if option is not None and line.value != "None":
            try:
                cast(option, line.value)
            except ValueError as error:
                raise line.wrong_value(f"of type {get_type_name(option.opt_type)}") from error


def cast(option: runopt, text: str) -> CfgVal:
    """Returns the value of a scheduler's option from its text.

    Raises:
        ValueError: The text is not of the option's type.
    """
    pairs = text.replace(";", ",").split(",")
    # TorchX has an IndexError for them.
    if get_origin(option.opt_type) is dict and not all(":" in pair for pair in pairs):
        raise ValueError(f"{text}: a map is KEY:VALUE;KEY:VALUE")
    return option.cast_to_type(text)


def check_arguments(component: str) -> None:
    """Refuses wrong defaults of a component's arguments in the site's file.

    Raises:
        DefaultsError: A key or a value is wrong.
    """
    for line in (line for file in _site_files() for line in _lines(file, f"component:{component}")):
        parameters = inspect.signature(get_component(component).fn).parameters
        if line.key not in parameters:
            raise line.wrong_key(parameters)
        kind = decode_optional(parameters[line.key].annotation)
        if is_bool(kind) and line.value.lower() not in ("true", "false"):
            raise line.wrong_value("True or False")
        try:
            kind(line.value) if is_primitive(kind) else decode(line.value, kind)
        except ValueError as error:
            raise line.wrong_value(f"of type {get_type_name(kind)}") from error


def with_file(error: Exception, scheduler: str, component: str, flags: Collection[str]) -> Exception:
    """Returns an error about an option or an argument, with the file that sets it unless a flag does."""
    found = OPTION.match(str(error))
    if not found or found["key"] in flags:
        return error
    section = scheduler if found["cfg"] else f"component:{component}"
    for line in (line for file in config.find_configs() for line in _lines(file, section)):
        if line.key == found["key"]:
            return DefaultsError(f"{line.file}: [{section}] {error}")
    return error


def _site_files() -> list[str]:
    """Returns the site's file, if there is one; an empty variable means none."""
    named = os.environ.get(SITE_VARIABLE)
    if named is None:
        return [SITE_FILE] if Path(SITE_FILE).exists() else []
    return [named] if named else []


def _lines(file: str, section: str) -> Iterator[Default]:
    parser = _read(file)
    for key, value in parser.items(section) if parser.has_section(section) else ():
        yield Default(file, section, key, value)


def _read(file: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.optionxform = lambda optionstr: optionstr  # as in TorchX, keys keep their case
    try:
        with open(file) as lines:
            parser.read_file(lines)
        for section in parser.sections():
            parser.items(section)  # a `%` is wrong only here
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise DefaultsError(
            f"{file}: cannot be read as a file with defaults: {' '.join(str(error).split())}"
        ) from error
    return parser
