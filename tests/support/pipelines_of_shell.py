"""Pipelines of lines of shell, and what `torchx pipeline` prints of them."""

import json
import re
from pathlib import Path

import tomli_w

SUBMITTED = re.compile(r"^(\w+) +(submitted|kept|refused|left out) *(\S*)", re.MULTILINE)


def write_pipeline(file: Path, **steps: tuple[str, ...]) -> Path:
    """Writes a pipeline of steps, each a line of shell and the steps before it; returns the file.

    A step that succeeds adds its name to `done` beside the file; `{go}` in a line is the file `go` beside it.
    """
    sections = {}
    for name, (script, *after) in steps.items():
        line = f"({script}) && echo {name} >> {file.parent}/done"
        sections[name] = {"component": "utils.sh", "arguments": {"args": ["exec", "sh", "-c", line]}, "after": after}
    text = {"out": str(file.parent / "out"), "values": {"go": str(file.parent / "go")}, "steps": sections}
    file.write_text(tomli_w.dumps(text))
    return file


def held(name: str = "go") -> str:
    """Returns a line of shell that waits for the file `go`."""
    return f"until [ -e {{{name}}} ]; do sleep 0.05; done"


def until_submitted(step: str) -> str:
    """Returns a line of shell that waits until the pipeline has submitted this step for the first time."""
    return f'until grep -qs \'"handle": "[^"]\' {{out}}/pipeline/{step}-1.json; do sleep 0.05; done'


def done(file: Path) -> list[str]:
    """Returns the steps that have succeeded, in the order of their ends."""
    found = file.parent / "done"
    return found.read_text().split() if found.exists() else []


def submitted(printed: str) -> dict[str, tuple[str, str]]:
    """Returns what `torchx pipeline run` says of each step, with the handle."""
    return {name: (what, job) for name, what, job in SUBMITTED.findall(printed)}


def verbs(printed: str) -> dict[str, str]:
    """Returns what `torchx pipeline run` says of each step."""
    return {name: what for name, (what, _) in submitted(printed).items()}


def table(printed: str) -> dict[str, tuple[str, ...]]:
    """Returns the state, the handle and the message of each step."""
    rows = [re.split(r" {2,}", line.strip()) for line in printed.splitlines()[2:] if "  " in line]
    return {name: (*rest,) for name, *rest in rows}


def submissions(file: Path, step: str) -> list[dict]:
    """Returns what the record of a pipeline holds of a step, the newest last."""
    files = (file.parent / "out/pipeline").glob(f"{step}-*.json")
    return [json.loads(each.read_text()) for each in sorted(files) if each.stat().st_size]
