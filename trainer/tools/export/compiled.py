"""Compiles an exported program to machine code, with AOTInductor."""

import shutil
from pathlib import Path

import torch
from torch.export import ExportedProgram

from trainer.core.errors import InputError

# For every x86-64 processor since 2013; by default the code is for the one that compiles.
PORTABLE = {"cpp.march": "x86-64-v3", "cpp.simdlen": 256}
# The check that AOTI_RUNTIME_CHECK_INPUTS=1 turns on refuses a single sample otherwise.
ANY_SIZE = {"aot_inductor.check_lowerbound": False}


def check_compiler() -> None:
    """Refuses to compile without a compiler.

    Raises:
        InputError: There is none.
    """
    if not shutil.which("g++"):
        raise InputError("--compile is True, which needs g++; install it (Debian: g++), or leave --compile out")


def compile_program(program: ExportedProgram, file: Path) -> None:
    """Compiles a program for CPUs, in half a minute, to a file with the weights in it."""
    torch._inductor.aoti_compile_and_package(
        program, package_path=str(file), inductor_configs=dict(PORTABLE | ANY_SIZE)
    )
