"""The table of what the project replaces in other packages: nothing is replaced that the table does not have."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_places import FILES, ROOT, module_name

PAGE = (ROOT / "docs/explanation/replacements.md").read_text()
OURS = ("components", "schedulers", "torchx_recsys", "trainer")
INSTALLED = [file for file in FILES if file.relative_to(ROOT).parts[0] in OURS and "aliases" not in file.parts]
SETTINGS = ("sys.", "torch.backends.")  # which are there to be assigned


def foreign_names(tree: ast.Module) -> set[str]:
    """Returns the names that a module imports from other packages."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] not in OURS:
            found |= {alias.asname or alias.name for alias in node.names}
    return found - {*OURS}


def root_of(node: ast.expr) -> str:
    """Returns the name with which `a.b[c].d` begins."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def assigned(tree: ast.Module) -> Iterator[str]:
    """Returns the attributes that are set of imported modules and classes, and private ones of any other object."""
    foreign = foreign_names(tree)
    for node in ast.walk(tree):
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        for target in [part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])]:
            if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                private = is_private(target.attr) and root_of(target) not in ("self", "cls")
                if root_of(target) in foreign or (private and not is_own(tree, target.attr)):
                    yield ast.unparse(target)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr" and root_of(node.args[0]) in foreign:
            yield f"{ast.unparse(node.args[0])}."


def is_own(tree: ast.Module, attribute: str) -> bool:
    """Returns whether a class of a module has an attribute, which an object of the class may then be given."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == attribute and root_of(node) == "self"
        for node in ast.walk(tree)
    )


def overriding(file: Path, tree: ast.Module) -> Iterator[str]:
    """Returns the classes that override a private method of a class of another package, which it is not meant to."""
    for node in tree.body:
        private = {each.name for each in getattr(node, "body", []) if is_private(getattr(each, "name", ""))}
        if (
            isinstance(node, ast.ClassDef)
            and private
            and any(root_of(base) in foreign_names(tree) for base in node.bases)
        ):
            bases = getattr(importlib.import_module(module_name(file)), node.name).__mro__
            theirs = [vars(base) for base in bases if base.__module__.partition(".")[0] not in OURS]
            overridden = [methods[name] for methods in theirs for name in private & {*methods}]
            if not all(getattr(method, "__isabstractmethod__", False) for method in overridden):
                yield node.name


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def replacements(file: Path) -> set[str]:
    """Returns what a file replaces in other packages."""
    tree = ast.parse(file.read_text())
    return {name for name in (*assigned(tree), *overriding(file, tree)) if not name.startswith(SETTINGS)}


def rows() -> set[tuple[str, str]]:
    """Returns the file and the name of each row of the table."""
    return set(re.findall(r"^\| `([\w.]+)` \| \[`([\w/]+\.py)`\]", PAGE, re.MULTILINE))


@pytest.mark.slow
def test_the_table_has_what_is_replaced_in_other_packages_and_nothing_else():
    found = {(name, str(file.relative_to(ROOT))) for file in INSTALLED for name in replacements(file)}
    assert found == rows() - {
        ("_Slot", "trainer/optim/table_kernels.py")
    }  # a class of ours that nothing but its use shows
