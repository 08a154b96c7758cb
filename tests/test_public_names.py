"""The names that a user's code imports: docs/reference/api.md has them all."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

import torchx_recsys

PAGE = (Path(__file__).parents[1] / "docs/reference/api.md").read_text()
SOURCE = Path(torchx_recsys.__file__).read_text()


def test_the_page_has_every_name_once():
    assert sorted(re.findall(r"^::: torchx_recsys\.(\w+)$", PAGE, re.MULTILINE)) == sorted(torchx_recsys.__all__)
    assert dir(torchx_recsys) == sorted(torchx_recsys.__all__)


@pytest.mark.parametrize("name", torchx_recsys.__all__)
def test_a_name_is_found_where_type_checkers_find_it(name):
    imports = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.ImportFrom)]
    (module,) = [node.module for node in imports if name in [alias.name for alias in node.names]]
    assert getattr(torchx_recsys, name) is getattr(import_module(module), name)


def test_a_wrong_name_is_refused():
    with pytest.raises(ImportError, match="cannot import name 'Metrik'"):
        from torchx_recsys import Metrik  # noqa: F401
