"""Counts the files and lines of the project, and measures how connected its core is.

Writes nothing, but prints a table for each.
Takes a second.

    python -m benchmarks house [TREE]

TREE is another checkout, to compare with. A line of code is neither blank, nor a comment, nor part of a docstring.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
PLACES = ("components", "schedulers", "trainer", "torchx_recsys", "planner", "apps", "pipelines", "sweeps")
BESIDE = ("benchmarks", "examples", "docs", "tests")
LOOP = "trainer.training.loop"
WHOLE = "Config"  # the root of a configuration, whose sections most functions could take instead
# For each extension: the words that mention it, and its own files in the trainer, wherever they are.
EXTENSIONS = {
    "preflight": (r"preflight", r"preflight|network_speed"),
    "histograms": (r"histogram", r"histograms"),
    "page": (r"\b[Pp]age\b", r"run/page|pages/"),
    "profiler": (r"\b[Pp]rofil(e|er|ing)\b", r"profile|step_split"),
    "compiled": (r"\bcompiled?\b|compile_", r"compiled"),
    "segments": (r"[Ss]egment", r"segments|ledger"),
    "managed ids": (r"[Mm]anaged", r"managed|id_requests|row_map|row_choice|blocks"),
}


def main(tree: Path = ROOT) -> None:
    """Prints the tables of a checkout."""
    files = read_files(tree)
    sizes = {name: (text.count("\n"), lines_of_code(text)) for name, text in files.items()}
    rows = [_size(place, [sizes[name] for name in files if name.startswith(f"{place}/")]) for place in _places(files)]
    print(tabulate(rows, ["place", "files", "lines", "lines of code", "a file"], intfmt=","))
    core = {name: text for name, text in files.items() if name.startswith("trainer/") and "/extensions/" not in name}
    closure = closure_of(LOOP, files)
    whole = {name: count for name, text in files.items() if name.startswith(PLACES) and (count := takes_root(text))}
    walked = [name for name in whole if name.startswith("trainer/")]
    facts = [
        *((f"mentions of {name} in the core", _mentions(core, *patterns)) for name, patterns in EXTENSIONS.items()),
        ("files in the closure of training/loop.py", len(closure)),
        ("lines of code in it", sum(sizes[name][1] for name in closure)),
        ("parameters that are the whole Config", sum(whole.values())),
        ("files with such a parameter", len(whole)),
        ("of them in the trainer", len(walked)),
    ]
    print("\n" + tabulate(facts, ["", "count"], intfmt=","))


def read_files(tree: Path = ROOT) -> dict[str, str]:
    """Returns the text of every file of Python of a checkout, by its path there."""
    return {
        str(file.relative_to(tree)): file.read_text() for place in (*PLACES, *BESIDE) for file in _files(tree / place)
    }


def lines_of_code(text: str) -> int:
    """Returns the number of lines that are neither blank, nor a comment, nor part of a docstring."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {line for token in tokens if token.type not in silent for line in range(token.start[0], token.end[0] + 1)}
    return len(lines - set(_docstrings(ast.parse(text))))


def closure_of(module: str, files: dict[str, str]) -> set[str]:
    """Returns the files of the project that a module imports, directly or not, itself included."""
    by_module = {_module(name): name for name in files}
    found, todo = set(), [module]
    while todo:
        name = todo.pop()
        if name not in by_module or by_module[name] in found:
            continue
        found.add(by_module[name])
        todo += _imports(files[by_module[name]], by_module)
    return found


def takes_root(text: str) -> int:
    """Returns how many parameters of the functions in a file are a whole configuration."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    arguments = (
        argument for node in functions for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    )
    return sum(isinstance(argument.annotation, ast.Name) and argument.annotation.id == WHOLE for argument in arguments)


def _files(place: Path) -> list[Path]:
    return sorted(file for file in place.rglob("*.py") if "releases/0" not in str(file))


def _places(files: dict[str, str]) -> list[str]:
    """Returns the places of a tree, and the rooms of the trainer and of the product's own package."""
    rooms = {
        "/".join(name.split("/")[:2])
        for name in files
        if name.startswith(("trainer/", "torchx_recsys/")) and name.count("/") > 1
    }
    return sorted({name.partition("/")[0] for name in files} | rooms)


def _size(place: str, sizes: list[tuple[int, int]]) -> tuple[str, int, int, int, int]:
    code = sum(code for _, code in sizes)
    return place, len(sizes), sum(lines for lines, _ in sizes), code, round(code / len(sizes))


def _mentions(core: dict[str, str], pattern: str, own: str) -> int:
    return sum(len(re.findall(f".*(?:{pattern}).*", text)) for name, text in core.items() if not re.search(own, name))


def _docstrings(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def _imports(text: str, known: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from [name for name in names if name in known] or [node.module]


def _module(name: str) -> str:
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
