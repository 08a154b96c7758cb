"""Finds losses, metrics, readers, models and schedules by name: built-in, or the user's own."""

import difflib
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from trainer.core.errors import OWN, InputError, nearest
from trainer.core.own_modules import rename


def find_by_name(key: str, name: str, registry: Mapping[str, Any]) -> Any:
    """Returns the object that a configuration key names.

    Args:
        key: The key, for messages.
        name: A name in the registry, or `package.module:object` for the user's own.
        registry: The built-in objects. A string of the form `package.module:object` stands for an object that is
            imported only when used.

    Raises:
        InputError: There is no such name, or the user's own object cannot be imported.
    """
    if name not in registry and ":" not in name:
        raise InputError(f"{key} is '{name}'{nearest(name, registry, OWN)}")
    found = registry.get(name, name)
    if not isinstance(found, str):
        return found
    module, _, attribute = found.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        if name in registry:
            raise
        missing = error.name if isinstance(error, ImportError) and error.name else module
        hint = _spelled_alike(module, attribute) or rename(missing)
        raise InputError(f"{key} is '{name}', which cannot be imported: {error}{hint}") from error


def _spelled_alike(module: str, attribute: str) -> str:
    """Returns the end of a message about an object that a module lacks, if the module has one that is spelled alike."""
    there = vars(sys.modules[module]) if module in sys.modules else ()
    close = difflib.get_close_matches(attribute, there, n=1)
    return f"; did you mean '{module}:{close[0]}'?" if close else ""
