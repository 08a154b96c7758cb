"""Measures by name, `python -m benchmarks costs`; without a name, lists what can be measured."""

import ast
import runpy
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main(words: list[str]) -> None:
    """Runs a benchmark with its arguments, or lists all."""
    found = descriptions()
    if not words:
        print("\n\n".join(f"{name}\n    {text}" for name, text in found.items()))
    elif words[0] not in found:
        print(f"error: no such benchmark: '{words[0]}'; choose from {', '.join(found)}", file=sys.stderr)
        sys.exit(2)
    else:
        sys.argv[1:] = words[1:]
        runpy.run_module(f"benchmarks.{words[0]}", run_name="__main__", alter_sys=True)


def descriptions() -> dict[str, str]:
    """Returns what each benchmark measures, writes and takes, by its name: how its docstring begins."""
    found = {}
    for file in sorted([*HERE.glob("[a-z]*.py"), *HERE.glob("*/__main__.py")]):
        source = file.read_text()
        if 'if __name__ == "__main__":' in source:
            what, writes, *_ = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
            name = file.parent.name if file.stem == "__main__" else file.stem
            found[name] = f"{what} {writes}".replace("\n", " ")
    return dict(sorted(found.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
