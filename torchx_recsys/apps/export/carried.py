"""Writes the source that an export carries: the loader with training's own rule functions, and the user's own rules."""

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

from torchx_recsys.apps.export import load
from trainer.config.data import DataConfig
from trainer.rules.registry import OwnRule, id_rule

IMPORT = re.compile(r"^from (trainer\.rules\.\w+) import (.+)\n", re.MULTILINE)


def write_loader(data: DataConfig, folder: Path) -> None:
    """Writes load.py and the rule files that load.py runs.

    Raises:
        InputError: A rule of the user's own cannot be carried.
    """
    (folder / "load.py").write_text(_loader())
    rules = [id_rule(name, feature) for name, feature in data.sparse.items()]
    for rule in rules:
        if isinstance(rule, OwnRule) and rule.is_carried:
            name, text = rule.source()
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)


def _loader() -> str:
    """Returns the loader with each import of a rule function replaced by the function's source."""
    text = inspect.getsource(load)
    found = IMPORT.findall(text)
    functions = [
        getattr(importlib.import_module(module), name) for module, names in found for name in names.split(", ")
    ]
    used = {line for function in functions for line in _imports(function)}
    text = IMPORT.sub("", text).replace("import importlib.util\n", "".join(sorted({*used, "import importlib.util\n"})))
    return "\n\n".join([text.rstrip() + "\n", *map(inspect.getsource, functions)])


def _imports(function: FunctionType) -> Iterator[str]:
    """Yields the import lines of the modules that a function uses."""
    for name in function.__code__.co_names:
        if inspect.ismodule(module := function.__globals__.get(name)):
            assert module.__name__ == name, f"{function.__name__} is carried, and may use modules by their names only"
            yield f"import {name}\n"
