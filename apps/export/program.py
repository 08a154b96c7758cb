"""Exports a module with torch.export, and checks what the exported model answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from apps.export.load import load
from trainer.core.errors import InputError

# What nodes tell of where they come from: paths and source code of the machine that exports.
ORIGINS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
LENGTHS = [2, 0, 3]  # of the lists of the samples that a module is traced with


def export_program(
    served: nn.Module, signature: dict[str, Any], name: str, embeddings: Sequence[dict[str, Any]] = ()
) -> ExportedProgram:
    """Returns the program of a module for batches of any size.

    Args:
        served: The module.
        signature: Names its inputs, in order.
        name: The model's, for the message.
        embeddings: Inputs of a second argument, which is looked up for the first: sizes as there, then the columns.

    Raises:
        InputError: The model is the user's own, and cannot be traced.
    """
    entries = signature["inputs"]
    sizes = {size: Dim(f"size_{place}", min=1 if size == "B" else 0) for place, size in enumerate(_sizes(entries))}
    given = [_example(entries)]
    if embeddings:
        lengths = {entry["shape"][0]: len(given[0][entry["name"]]) for entry in entries}
        given.append({one["name"]: torch.zeros(lengths[one["shape"][0]], *one["shape"][1:]) for one in embeddings})
    groups = (entries, embeddings)[: len(given)]
    shapes = tuple({entry["name"]: {0: sizes[entry["shape"][0]]} for entry in group} for group in groups)
    try:
        with torch.no_grad():
            program = torch.export.export(served, tuple(given), dynamic_shapes=shapes, strict=False)
    except Exception as error:
        if ":" not in name:
            raise
        raise InputError(
            f"model.name is '{name}', which torch.export cannot trace: {first_line(error)}; use its tables by "
            "name, and do not branch on values"
        ) from error
    _number_weights(program)
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            for key in ORIGINS:
                node.meta.pop(key, None)
    return program


def _number_weights(program: ExportedProgram) -> None:
    """Names the weights by numbers: torch writes their names into code, and columns give tables theirs, as `class`."""
    numbers = {name: f"weight_{place}" for place, name in enumerate([*program.state_dict, *program.constants])}
    for weights in (program.state_dict, program.constants):
        for name in [*weights]:
            weights[numbers[name]] = weights.pop(name)
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        spec.target = numbers.get(spec.target or "", spec.target)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def save_program(program: ExportedProgram, file: Path) -> None:
    """Writes a program with its weights, and without its example inputs, which would be pickled."""
    program._example_inputs = None
    torch.export.save(program, file)


def _sizes(entries: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(entry["shape"][0] for entry in entries))


def _example(entries: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Returns three samples; sizes of 0 and 1 would become constants of the program."""
    found = {}
    for entry in entries:
        size = len(LENGTHS) if entry["shape"] == ["B"] else sum(LENGTHS)
        # A tensor of its own for each input: inputs that were one would be one in the program.
        values = LENGTHS if "lengths_of" in entry else [0] * size
        found[entry["name"]] = torch.tensor(values, dtype=getattr(torch, entry["dtype"]))
    return found


def check_parity(directory: Path, parity: dict[str, Any], name: str, compiled: bool = False) -> float:
    """Returns the greatest difference between the answers of an exported model and those of the trainer.

    Raises:
        InputError: It is greater than allowed, or the model is the user's own, and its exported form does not run.
    """
    try:
        found = load(directory, compiled)(parity["columns"])
    except Exception as error:
        if ":" not in name:
            raise
        raise InputError(f"model.name is '{name}', whose exported form does not run: {first_line(error)}") from error
    worst = max(
        (torch.as_tensor(found[output]) - torch.tensor(values, dtype=torch.float32)).abs().max().item()
        for output, values in parity["answers"].items()
    )
    if not worst <= parity["tolerance"]:
        raise InputError(
            f"model.name is '{name}', whose exported form answers differently, by {worst:.2g} where "
            f"{parity['tolerance']:g} is allowed; it must not depend on other samples, or branch on values"
        )
    return worst
