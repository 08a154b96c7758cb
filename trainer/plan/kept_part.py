"""The measured dense part of a model, kept for the next start of the same model.

Measuring takes 0.15 s of processor time for DeepFM on MovieLens, and seconds for long histories.
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torchx_recsys.planner.tables import DenseMemory, DensePart, DenseWork
from trainer.core.errors import InputError
from trainer.core.storage import digest
from trainer.data.file_outlines import Cache

OWN = re.compile(r'"[\w.]+:\w+"')  # an object of the user's own, whose code may change
NO_WORK = DenseWork(flops=0, batched_flops=0, bytes=0, gradients=0, kernels=0)


def find_part(decides: list[Any], measure: Callable[[], DensePart]) -> DensePart:
    """Returns the dense part, as the user's cache has it or measured now.

    Args:
        decides: All that decides it beside the code, as JSON holds it.
        measure: Measures it.
    """
    if OWN.search(json.dumps(decides)):
        return measure()
    name = f"{digest([decides, _code()])}.dense"
    try:
        cache = Cache(None)
        content = cache.read(name)
    except InputError as error:  # a cache that fails is no reason not to train
        print(f"the dense part is measured at every start: {error}", flush=True)
        return measure()
    if content and (kept := _unpacked(content)):
        return kept
    part = measure()
    if part.work != NO_WORK:  # or the next start would not warn that the model takes no step without values
        try:
            cache.write(name, json.dumps(asdict(part)).encode())
        except InputError as error:
            print(f"the measured dense part is not kept for the next start: {error}", flush=True)
    return part


def _unpacked(content: bytes) -> DensePart | None:
    try:
        found = json.loads(content)
        return DensePart(DenseMemory(**found["memory"]), DenseWork(**found["work"]))
    except (ValueError, KeyError, TypeError) as error:
        print(f"the dense part is measured again, as what was kept of it cannot be used: {error}", flush=True)
        return None


@cache
def _code() -> list[str]:
    """Returns the versions of packages, and a digest of the trainer's own code."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    content = sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()
    return [sys.version, content, *(version(name) for name in ("torch", "torchrec"))]
