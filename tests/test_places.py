"""The places of the project and the rooms of the trainer: who may import whom, and what is free of torch."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FREE_OF_TORCH = (
    *(
        "core.errors",
        "core.outcome",
        "core.progress",
        "core.own_modules",
        "core.run_directory",
        "core.secrets",
        "core.section",
        "core.storage",
    ),
    *(
        "config.overrides",
        "config.root",
        "metrics.checks",
        "metrics.registry",
        "pages.figures",
        "pages.html",
        "run.lock",
    ),
)
# What each place may import of the others: a place, or a module that is free of torch.
MAY_IMPORT = {
    "benchmarks": {"torchx_recsys.apps", "trainer", "torchx_recsys.planner", "docs"},
    "examples": {
        "torchx_recsys",
        # Of a loop of one's own, examples/own_loop.
        *("trainer.config.root", "trainer.core.distributed"),
        *(f"trainer.training.{name}" for name in ("epochs", "loss_scale", "sharded_model", "step")),
    },
    # The public names, and the tracker of TorchX.
    "torchx_recsys": {"trainer", "torchx_recsys.apps", "schedulers.job_records"},
    "torchx_recsys.apps": {"trainer", "torchx_recsys.planner"},
    "trainer": {"torchx_recsys.planner"},
    "torchx_recsys.planner": set(),
    "torchx_recsys.sweeps": {
        "torchx_recsys.pipelines",
        "components",
        "schedulers",
        *(f"trainer.{name}" for name in FREE_OF_TORCH),
    },
    "torchx_recsys.pipelines": {"components", "schedulers", *(f"trainer.{name}" for name in FREE_OF_TORCH)},
    "components": {"schedulers", *(f"trainer.core.{name}" for name in ("errors", "outcome", "progress", "secrets"))},
    "schedulers": {
        *("trainer.core.outcome", "trainer.core.progress", "trainer.core.secrets"),
        "torchx_recsys.planner.hardware",
    },
}
# The rooms of the trainer. Each may use those after it.
ROOMS = [
    "extensions",
    "training",
    "run",
    "checkpoint",
    "plan",
    "metrics",
    "optim",
    "models",
    "batches",
    "data",
    "config",
    "rules",
    "pages",
    "core",
]
FILES = sorted({file for place in MAY_IMPORT for file in (ROOT / place.replace(".", "/")).rglob("*.py")})


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {module_name(file) for file in FILES}


def imported(file: Path) -> set[str]:
    """Returns the modules of the project that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (names & NAMES) or {node.module}
    return {name for name in found if name.partition(".")[0] in {*MAY_IMPORT, "docs"}}


def place_of(module: str) -> str:
    """Returns the place of a module: of two names in the product's own package, of one elsewhere."""
    two = ".".join(module.split(".")[:2])
    return two if two in MAY_IMPORT else two.partition(".")[0]


def room_of(module: str) -> str | None:
    """Returns the room of a module of the trainer; None for the program above them, `commands` and `__main__`."""
    _, room, *_ = [*module.split("."), ""]
    return room if room in ROOMS else None


def test_every_package_of_the_trainer_is_a_room_that_is_described():
    assert {file.parent.name for file in (ROOT / "trainer").glob("*/__init__.py")} == {*ROOMS}
    for room in ROOMS:
        assert (
            len(ast.get_docstring(ast.parse((ROOT / "trainer" / room / "__init__.py").read_text())).split("\n\n")) == 2
        )


def test_a_room_says_which_rooms_it_uses():
    for room in ROOMS:
        says = ast.get_docstring(ast.parse((ROOT / "trainer" / room / "__init__.py").read_text())).split("Uses ")[1]
        modules = {module for file in (ROOT / "trainer" / room).rglob("*.py") for module in imported(file)}
        uses = {room_of(module) for module in modules if place_of(module) == "trainer"} - {room, None}
        below = {*ROOMS[ROOMS.index(room) + 1 :]}
        said = {word for word in ROOMS if re.search(rf"\b{word}\b", says.partition(";")[0])}
        assert uses == said or (says.startswith("all") and uses <= below - said), f"{room} uses {sorted(uses)}"


def test_the_rooms_and_files_that_pages_name_are_there():
    page, _, rooms = (ROOT / "docs/explanation/architecture.md").read_text().partition("## Rooms")
    assert re.findall(r"^\| `(\w+)/` \|", rooms, re.MULTILINE) == ROOMS
    apps = {file.parent.name for file in (ROOT / "torchx_recsys/apps").glob("*/__init__.py")}
    assert {app for app in apps if f"`{app}/`" not in page} == set()
    for file in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        named = re.findall(r"`([\w/]+/\w+\.py)`", file.read_text())
        roots = (ROOT, ROOT / "trainer", ROOT / "torchx_recsys")
        assert [name for name in named if not any((root / name).exists() for root in roots)] == [], file


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_a_file_imports_what_its_place_and_room_may_use(file):
    name = module_name(file)
    place = place_of(name)
    for module in imported(file):
        there = place_of(module)
        assert there == place or {there, module} & MAY_IMPORT[place], f"{name} imports {module}"
        if place == there == "trainer" and room_of(name) != room_of(module):
            allowed = ROOMS if room_of(name) is None else ROOMS[ROOMS.index(room_of(name)) :]
            assert room_of(module) in allowed or room_of(name) is None, f"{name} imports {module}"


@pytest.mark.parametrize("file", sorted((ROOT / "trainer" / "extensions").iterdir()), ids=lambda file: file.stem)
def test_an_extension_imports_no_other_extension(file):
    own = f"trainer.extensions.{file.stem}"
    for one in [file] if file.is_file() else file.rglob("*.py"):
        others = {name for name in imported(one) if name.startswith("trainer.extensions.")}
        assert {name for name in others if not f"{name}.".startswith(f"{own}.")} == set()


def test_no_import_goes_in_a_circle():
    graph = {module_name(file): imported(file) & NAMES - {module_name(file)} for file in FILES}
    while leaves := [name for name, uses in graph.items() if not uses & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert graph == {}


@pytest.mark.parametrize(
    "modules",
    [
        "trainer.config, trainer.config.root",
        "torchx_recsys",
        "torchx_recsys.planner, torchx_recsys.planner.plan",
    ],
)
def test_no_torch_is_imported(modules):
    code = f"import sys, {modules}; print({{'torch', 'torchrec', 'fbgemm_gpu'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "set()\n", done.stderr
