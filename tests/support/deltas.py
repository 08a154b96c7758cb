"""Runs with several checkpoints, and exports of each, for tests of exports that hold what changed."""

import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import torch
from exported import step_directory
from jobs import config, launch, write_rows

from torchx_recsys.apps.export.load import Model
from trainer.__main__ import main as trainer

STEPS = (5, 10, 15, 20)
WIDE = 50_000
"""Rows of a table, of which a run sees few."""


def train(folder: Path, trees: dict[str, dict]) -> None:
    """Trains configurations and keeps all checkpoints."""
    kept = {"every_steps": STEPS[0], "keep": {"newest": len(STEPS)}}
    jobs = [{"config": tree | {"checkpoint": kept}, "out": str(folder / name)} for name, tree in trees.items()]
    launch(jobs, 1, folder)


def wide_config(folder: Path, table_rows: int = WIDE, **changes: object) -> dict:
    """Returns the configuration of a model with a large table; `changes` are as in `jobs.config`."""
    rows = folder / "rows"
    if not rows.exists():
        write_rows(rows, [130])
    tree = config(rows, data__validation=[str(rows)], train__steps=STEPS[-1], **changes)
    tree["data"]["sparse"]["s0"] = {"rows": table_rows}
    return tree


def command(run: Path, to: object, step: int, *flags: object) -> list[str]:
    """Returns the words that export a checkpoint of a run."""
    words = ["export", run / "config.toml", "--out", run, "--to", to, "--checkpoint", step, *flags]
    return [str(word) for word in words]


def export(run: Path, to: Path, step: int, *flags: object) -> Path:
    """Exports a checkpoint of a run and returns the directory."""
    assert trainer(command(run, to, step, *flags)) == 0
    return step_directory(to)


def copied(exports: Path, to: Path, *steps: int) -> Path:
    """Copies some exports of a directory, the last as the current one."""
    for step in steps:
        shutil.copytree(exports / f"step-{step}", to / f"step-{step}")
    name_current(to, f"step-{steps[-1]}")
    return to


def name_current(exports: Path, name: str) -> None:
    """Names an export in current.json, as a whole file."""
    (exports / "current.partial").write_text(json.dumps({"directory": name}))
    (exports / "current.partial").rename(exports / "current.json")


def rewrite(file: Path, change: Callable[[bytes], bytes]) -> None:
    """Changes a file of an export, and its entry in the manifest."""
    file.parent.mkdir(exist_ok=True)
    content = change(file.read_bytes() if file.exists() else b"")
    file.write_bytes(content)
    directory = next(one for one in file.parents if (one / "manifest.json").exists())
    manifest = json.loads((directory / "manifest.json").read_text())
    entry = {"bytes": len(content), "crc32": zlib.crc32(content)}
    manifest["files"][file.relative_to(directory).as_posix()] = entry
    (directory / "manifest.json").write_text(json.dumps(manifest))


def bits(model: Model) -> dict[str, bytes]:
    """Returns the bytes of all tensors."""
    return {
        name: tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        for name, tensor in model.tensors.items()
    }


def predecessor(directory: Path) -> str | None:
    """Returns the name of the export that an export changes."""
    return json.loads((directory / "manifest.json").read_text()).get("predecessor", {}).get("directory")
