"""Lists and verifies the checkpoints of a run, and converts a checkpoint to a plain file.

Nothing here writes to the run directory, so a job may write to it meanwhile.
"""

from contextlib import suppress
from datetime import datetime
from typing import Any

from tabulate import tabulate

from trainer.checkpoint.choice import read_evaluations
from trainer.checkpoint.retention import best_step, named_ends, reasons_to_keep, scores
from trainer.checkpoint.store import MANIFEST, Checkpoints
from trainer.config.train import Retention
from trainer.core.console import next_commands, plural, python_command
from trainer.core.errors import DamagedError, InputError, some_of
from trainer.core.run_directory import RunDirectory, pass_over
from trainer.core.secrets import without_secrets
from trainer.core.section import validate
from trainer.core.storage import named, refuse_existing
from trainer.metrics.registry import built_in

AGES = (("days", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("bytes", 1))


def checkpoints(
    out: str, verify: bool = False, convert: str | None = None, step: int | None = None, overwrite: bool = False
) -> None:
    """Lists the checkpoints of a run, verifies them, or converts one to a single file.

    The list marks the best checkpoint by each metric of data.validation with a star, and shows why each is kept. A
    converted file is read by torch.load(FILE, weights_only=True), without torchrec, fbgemm or a process group:
    a dict of plain tensors by name, and `step`.

    Args:
        out: The run directory, any fsspec URL. Nothing is written to it.
        verify: Read all files back and compare them with their manifest; exit code 1 if a file is damaged.
        convert: File to write, any fsspec URL; the suffix .safetensors selects that format.
        step: Only the checkpoint of this step. Unset: all of them, and the newest good one to convert.
        overwrite: Replace a file to convert to that exists.

    Raises:
        InputError: There is no such checkpoint, the checkpoint to convert is damaged, or the file cannot be written.
    """
    refuse_existing({"--convert": convert}, overwrite)
    run = RunDirectory(out)
    found = Checkpoints(run)
    damages = {}
    if verify or convert is None:
        with named("--out", out):
            both = found.steps(), found.uncommitted()
        committed, uncommitted = ([known for known in steps if step in (None, known)] for steps in both)
        if not committed and not uncommitted:
            raise InputError(f"--out is '{out}', where {_nothing(step, found)}")
        damages = _damages(found, committed) if verify else {}
        states = dict.fromkeys(committed, "ok" if verify else "committed") | damages
        print(_table(run, found, states | dict.fromkeys(uncommitted, "not committed")))
        if verify:
            print("\nok: every file has the size and the CRC-32 checksum that its manifest.json names")
    if convert is not None:
        _convert(found, out, convert, step)
    elif not verify:
        command = ["torchx", "run", "tools.checkpoints", "--out", out]
        print(f"\n{next_commands([*command, '--verify', 'True'], [*command, '--convert', 'FILE.pt'])}")
    if damages:
        raise SystemExit(1)


def _nothing(step: int | None, found: Checkpoints) -> str:
    if step is None or not (steps := found.steps()):
        return "there is no good checkpoint" if found.steps() else "there is no checkpoint"
    return f"there is no checkpoint of step {step}; there are those of {some_of(steps)}"


def _damages(found: Checkpoints, steps: list[int]) -> dict[int, str]:
    known: dict[int, str | None] = {}  # so that no file of a chain is read twice
    damages = {step: damage for step in steps if (damage := found.damage(step, known))}
    still_there = found.steps()  # a job may have deleted a checkpoint during the check
    return {step: damage for step, damage in damages.items() if step in still_there}


def _table(run: RunDirectory, found: Checkpoints, states: dict[int, str]) -> str:
    """Returns the table of the checkpoints that `states` names."""
    predecessors = found.with_predecessors()
    steps, has_deltas = [*predecessors], any(predecessors.values())
    evaluations = read_evaluations(run)
    reasons = reasons_to_keep(_retention(run), steps, evaluations, named_ends(found, steps), predecessors)
    metrics = _metrics(steps, evaluations)
    rows = [
        {
            "step": step,
            **_facts(RunDirectory(found.url(step))),
            **({"builds on": predecessors.get(step)} if has_deltas else {}),
            "state": states[step],
            **{name: values.get(step) for name, values in metrics.items()},
            "kept as": ", ".join(reasons.get(step, ())),
        }
        for step in sorted(states)
    ]
    return tabulate(rows, headers="keys", colalign=("right",) * (5 if has_deltas else 4), disable_numparse=True)


def _retention(run: RunDirectory) -> Retention:
    """Returns the retention rules of the run; warns and returns the defaults if its configuration is damaged."""
    try:
        keep = (run.read_toml("config.toml") or {}).get("checkpoint", {}).get("keep", {})
        return validate(Retention, keep, lambda _: f"{run.url_of('config.toml')}: ")
    except (DamagedError, InputError) as error:
        pass_over(run.damaged("config.toml", why=error) if isinstance(error, InputError) else error)
        return Retention()


def _facts(checkpoint: RunDirectory) -> dict[str, Any]:
    """Returns the age, size and ranks of a checkpoint; None for facts that its files do not hold yet."""
    facts: dict[str, Any] = dict.fromkeys(("age", "size", "ranks"))
    with suppress(FileNotFoundError):
        facts["size"] = _rounded(checkpoint.fs.du(checkpoint.path()), SIZES)
        modified = checkpoint.fs.modified(checkpoint.path(MANIFEST))
        facts["age"] = _rounded((datetime.now(modified.tzinfo) - modified).total_seconds(), AGES)
    with suppress(KeyError, DamagedError):
        facts["ranks"] = (checkpoint.read_json("plan.json") or {})["world_size"]
    return facts


def _rounded(amount: float, units: tuple[tuple[str, int], ...]) -> str:
    """Formats an amount in the largest unit of which it has at least two."""
    unit, size = next((unit for unit in units if amount >= 2 * unit[1]), units[-1])
    return f"{amount / size:,.0f} {unit}"


def _metrics(steps: list[int], evaluations: list[dict[str, Any]]) -> dict[str, dict[int, str]]:
    """Returns the values of each metric on data.validation by step, the best with a star."""
    names = {name for line in evaluations for name in line if built_in(name.partition("/")[0])}
    cells = {}
    for name in sorted(names):
        values = scores(name, steps, evaluations)
        best = best_step(name, values)
        cells[name] = {step: f"{value:.5f}{' *' if step == best else '  '}" for step, value in values.items()}
    return {name: values for name, values in cells.items() if values}


def _convert(found: Checkpoints, out: str, file: str, step: int | None) -> None:
    if step in found.steps() and (damage := found.damage(step)):
        others = ", ".join(str(other) for other in found.steps() if other != step) or "none"
        raise InputError(f"--step is {step}, whose checkpoint cannot be used: {damage}; there are also: {others}")
    checkpoint = found.newest() if step is None else found.at(step) if step in found.steps() else None
    if checkpoint is None:
        raise InputError(f"--out is '{out}', where {_nothing(step, found)}")

    from torchx_recsys.apps.runs.saved_tensors import SAFETENSORS, read_tensors, write_plain

    tensors = read_tensors(checkpoint.url)
    write_plain(tensors, checkpoint.step, file)
    print(
        f"step {checkpoint.step:,}: {plural(len(tensors), 'tensor')} of {without_secrets(checkpoint.url)} are in {file}"
    )
    load = (
        "from safetensors.torch import load_file; print(load_file({}).keys())"
        if file.endswith(SAFETENSORS)
        else "import torch; print(torch.load({}, weights_only=True).keys())"
    )
    print(f"\n{next_commands(python_command(load, file))}")
