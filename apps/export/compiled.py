"""Compiles an exported program to machine code, with AOTInductor."""

import mmap
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import torch
from torch._inductor.runtime.cache_dir_utils import cache_dir
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
    if not (shutil.which("g++") and shutil.which("strip")):
        raise InputError("--compile is True, which needs g++; install it (Debian: g++), or leave --compile out")


def compile_program(program: ExportedProgram, file: Path) -> None:
    """Compiles a program for CPUs, in half a minute, to a file with the weights in it."""
    with tempfile.TemporaryDirectory() as folder:
        package = f"{folder}/package.pt2"
        options = dict(PORTABLE | ANY_SIZE)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # torch copies its own, and warns of that
            torch._inductor.aoti_compile_and_package(program, package_path=package, inductor_configs=options)
        with zipfile.ZipFile(package) as archive:
            archive.extractall(f"{folder}/files")
        os.remove(package)
        _anonymize(Path(folder, "files"))
        _zip(Path(folder, "files"), file)


def _anonymize(folder: Path) -> None:
    """Takes the paths of this machine out: sources are emptied, as the loader wants their names, libraries stripped."""
    for file in folder.rglob("*.cpp"):
        file.write_text("")
    for file in folder.rglob("*.so"):
        subprocess.run(["strip", "--strip-debug", str(file)], check=True)
        with file.open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as content:
            for path in _paths():
                _overwrite(content, path.encode())


def _paths() -> list[str]:
    """Returns the directories that messages of the code name: torch's headers, and the compiler's own files."""
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
