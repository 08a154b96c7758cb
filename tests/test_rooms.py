"""The rooms of the trainer: imports point down one list, in no circle, and the configuration needs no torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRAINER = ROOT / "trainer"
# Each room may use those after it. Only commands use datasets, and nothing uses tools.
ROOMS = [
    "tools",
    "training",
    "run",
    "checkpoint",
    "plan",
    "metrics",
    "optim",
    "models",
    "data",
    "datasets",
    "config",
    "core",
]
MODULES = sorted(TRAINER.rglob("*.py"))


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(file) for file in MODULES}


def imported(file: Path) -> set[str]:
    """Returns the modules of the project that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & NAMES) or {node.module}
    return {name for name in found if name.partition(".")[0] in ("trainer", "schedulers", "components")}


def room_of(module: str) -> str | None:
    """Returns the room of a module; None for the program above them, `trainer.commands` and `trainer.__main__`."""
    _, room, *_ = [*module.split("."), ""]
    return room if room in ROOMS else None


def test_every_package_is_a_room_that_is_described():
    packages = {file.parent.name for file in TRAINER.glob("*/__init__.py")}
    assert packages == set(ROOMS)
    for room in ROOMS:
        assert len(ast.get_docstring(ast.parse((TRAINER / room / "__init__.py").read_text())).split("\n\n")) == 2


@pytest.mark.parametrize("file", MODULES, ids=module_name)
def test_imports_point_down(file):
    here = room_of(module_name(file))
    for module in imported(file):
        assert module.startswith("trainer"), f"{module_name(file)} imports {module}"
        there = room_of(module)
        if here is None or here == there:
            continue
        assert there is not None, f"{here} imports {module}"
        assert ROOMS.index(there) > ROOMS.index(here), f"{here} is below {there}"
        assert there != "datasets" or here == "tools", "only commands make data sets"


def test_no_import_goes_in_a_circle():
    graph = {module_name(file): imported(file) & NAMES - {module_name(file)} for file in MODULES}
    while leaves := [name for name, uses in graph.items() if not uses & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert graph == {}


def test_the_configuration_needs_no_torch():
    code = (
        "import sys, trainer.config, trainer.config.root; print({'torch', 'torchrec', 'fbgemm_gpu'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr


def test_no_file_is_long():
    lengths = {module_name(file): len(file.read_text().splitlines()) for file in MODULES}
    assert max(lengths.values()) <= 500, lengths
