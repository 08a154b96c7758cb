"""Traces a module with torch.export, compiles the program with AOTInductor, and checks its answers."""

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.export import Dim, ExportedProgram

from torchx_recsys.apps.export.load import ColumnError, load
from trainer.core.errors import InputError, first_line

# Node metadata with paths and source code of the exporting machine.
ORIGINS = ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "from_node")
LENGTHS = [2, 0, 3]  # lengths of lists in the example samples
# Runs on every x86-64 processor since 2013; the default is the compiling processor's instruction set.
PORTABLE = {"cpp.march": "x86-64-v3", "cpp.simdlen": 256}
# Otherwise a single sample is refused under AOTI_RUNTIME_CHECK_INPUTS=1.
ANY_SIZE = {"aot_inductor.check_lowerbound": False}


def export_program(
    served: nn.Module, signature: dict[str, Any], name: str, embeddings: Sequence[dict[str, Any]] = ()
) -> ExportedProgram:
    """Returns the program of a module for batches of any size.

    Args:
        served: The module.
        signature: Names the inputs, in order.
        name: The model's name, for the message.
        embeddings: Inputs of a second argument, the embeddings of the ids in the first: size, then columns.

    Raises:
        InputError: A user's own model cannot be traced.
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


def check_compiler() -> None:
    """Refuses to compile without a compiler.

    Raises:
        InputError: There is no compiler.
    """
    if not (shutil.which("g++") and shutil.which("strip")):
        raise InputError("--compile is True, which needs g++; install it (Debian: g++), or leave --compile out")


def compile_program(program: ExportedProgram, file: Path) -> None:
    """Compiles a program with its weights for CPUs, to a file. Takes half a minute."""
    with tempfile.TemporaryDirectory() as folder:
        package = f"{folder}/package.pt2"
        options = dict(PORTABLE | ANY_SIZE)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch's warning about its own copy
            torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=options)
        with zipfile.ZipFile(package) as archive:
            archive.extractall(f"{folder}/files")
        os.remove(package)
        _anonymize(Path(folder, "files"))
        _zip(Path(folder, "files"), file)


def check_parity(directory: Path, parity: dict[str, Any], name: str, compiled: bool = False) -> float:
    """Returns the greatest difference between the answers of an exported model and those of the trainer.

    Raises:
        InputError: The difference is greater than allowed, a row has a value that exports do not take, or the exported
            form of a user's own model does not run.
    """
    try:
        found = load(directory, compiled)(parity["columns"])
    except ColumnError as error:  # such as a decimal beyond the integers of its column
        raise InputError(f"an exported model refuses rows of the split: {error}; write other values") from error
    except Exception as error:
        if ":" not in name:
            raise
        raise InputError(f"model.name is '{name}', whose exported form does not run: {first_line(error)}") from error
    worst = max(
        _difference(torch.as_tensor(found[output]), torch.tensor(values, dtype=torch.float32))
        for output, values in parity["answers"].items()
    )
    if not worst <= parity["tolerance"]:
        raise InputError(
            f"model.name is '{name}', whose exported form answers differently, by {worst:.2g} where "
            f"{parity['tolerance']:g} is allowed; it must not depend on other samples, or branch on values"
        )
    return worst


def _difference(found: Tensor, expected: Tensor) -> float:
    """Returns the greatest difference, relative to the largest answer if that is above 1, as float32 rounds."""
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1)).item()


def save_program(program: ExportedProgram, file: Path) -> None:
    """Writes a program with its weights, but without its example inputs, which torch would pickle."""
    program._example_inputs = None
    torch.export.save(program, file)


def _number_weights(program: ExportedProgram) -> None:
    """Names weights by number: torch writes the names into code, where a column named `class` would be a keyword."""
    numbers = {name: f"weight_{place}" for place, name in enumerate([*program.state_dict, *program.constants])}
    for weights in (program.state_dict, program.constants):
        for name in [*weights]:
            weights[numbers[name]] = weights.pop(name)
    for spec in (*program.graph_signature.input_specs, *program.graph_signature.output_specs):
        spec.target = numbers.get(spec.target or "", spec.target)


def _sizes(entries: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(entry["shape"][0] for entry in entries))


def _example(entries: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Returns three samples, as sizes of 0 and 1 would become constants of the program."""
    found = {}
    for entry in entries:
        size, *columns = entry["shape"]
        rows, dtype = len(LENGTHS) if size == "B" else sum(LENGTHS), getattr(torch, entry["dtype"])
        # A tensor for each input: inputs that share a tensor would be one input of the program.
        zeros = torch.zeros(rows, *columns, dtype=dtype)
        found[entry["name"]] = torch.tensor(LENGTHS, dtype=dtype) if "lengths_of" in entry else zeros
    return found


def _anonymize(folder: Path) -> None:
    """Removes the paths of this machine: strips libraries, and empties sources, whose names the loader needs."""
    for file in folder.rglob("*.cpp"):
        file.write_text("")
    for file in folder.rglob("*.so"):
        subprocess.run(["strip", "--strip-debug", str(file)], check=True)
        with file.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as content:
            for path in _paths():
                _overwrite(content, path.encode())


def _paths() -> list[str]:
    """Returns the directories that messages in the code name: torch's headers and the compiler's own files."""
    return [str(Path(torch.__file__).parent), cache_dir(), sys.prefix, sys.base_prefix]


def _overwrite(content: mmap.mmap, path: bytes) -> None:
    place = content.find(path)
    while place >= 0:
        content[place : place + len(path)] = b"-" * len(path)
        place = content.find(path, place + len(path))


def _zip(folder: Path, file: Path) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, path.relative_to(folder))
