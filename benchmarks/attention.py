"""Measures memory and time of a unit of HSTU by the length of a history, beside attention by the full matrix.

Writes docs/explanation/attention.md.
Takes three minutes of a quiet machine, and 3 GB of memory.

Each number is of a process of its own, with one thread. Memory is the growth of the process in one forward and
backward, up to its peak. Times are of the processor; both ways take turns.
"""

import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from benchmarks.bench.comparison import alternate, median_and_spread
from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from trainer.models import hstu
from trainer.models.blocked_attention import Bias
from trainer.models.recompute import recompute_parts

PAGE = ROOT / "docs" / "explanation" / "attention.md"
COLUMNS, HEADS, BLOCK, REPEATS = 128, 4, 256, 5
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
FULL_TO = 4096  # longest history that is computed by the full matrix, which takes four times as much for each doubling
TIMED = (50, 200, 500, 1000, 2000)
PAIRS = 1 << 18  # pairs of tokens at once, as the trainer groups histories
KIB, MIB = 1 << 10, 1 << 20


def main() -> None:
    """Measures everything and rewrites both tables."""
    write_measured(PAGE, "memory", render_memory({length: memory_of(length) for length in LENGTHS}))
    write_measured(PAGE, "times", render_times({length: apart(times_of, length) for length in TIMED}))


def full_matrix(queries: Tensor, keys: Tensor, values: Tensor, *, divisor: float, bias: Bias, **_: Any) -> Tensor:
    """Returns what `silu_attention` does, from the scores of all pairs of tokens, which are kept for backward."""
    others = keys.shape[2] - queries.shape[2]
    scores = queries @ keys.mT + bias(slice(others, keys.shape[2]), slice(0, keys.shape[2]))
    return nn.functional.silu(scores).tril(others) @ values / divisor


@contextmanager
def attention(is_full: bool) -> Iterator[None]:
    """Inside the block, units attend by the full matrix, if so."""
    with patch.object(hstu, "silu_attention", full_matrix if is_full else hstu.silu_attention):
        yield


def unit_step(length: int, samples: int = 1, is_recomputed: bool = False) -> Callable[[], Tensor]:
    """Returns a function that takes random histories with times through a unit, and returns a loss."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = SimpleNamespace(attention_heads=HEADS, attention_block=BLOCK, target_time="now")
    inputs: Any = SimpleNamespace(config=config, device=torch.device("cpu"), dropout=lambda from_the_end: nn.Identity())
    unit = hstu.TransductionUnit(COLUMNS, length, inputs)
    if is_recomputed:
        recompute_parts(unit)
    tokens = torch.randn(samples, length, COLUMNS, requires_grad=True)
    present, times = torch.ones(samples, length, dtype=torch.bool), torch.randint(0, 10**5, (samples, length)).cumsum(1)
    return lambda: unit(tokens, present, (times, times), length).sum()


def memory_of(length: int) -> dict[str, int]:
    """Returns bytes: the growth by the full matrix and in blocks, and what blocks keep, and what recomputation does."""
    found = {"full": apart(grown, length, True)} if length <= FULL_TO else {}
    return found | {
        "blocks": apart(grown, length, False),
        "kept": apart(kept, length, False),
        "recomputed": apart(kept, length, True),
    }


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a function returns in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def grown(length: int, is_full: bool) -> int:
    """Returns the bytes by which this process grows in a step, at the peak."""
    unit_step(16)().backward()  # what torch needs once
    step = unit_step(length)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is from now on
    before = _status("VmRSS")
    with attention(is_full):
        step().backward()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    (found,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return KIB * int(found)


def kept(length: int, is_recomputed: bool) -> int:
    """Returns the bytes that a unit keeps for backward, beside its weights."""
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    step = unit_step(length, is_recomputed=is_recomputed)
    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = step()
    assert loss.requires_grad
    return sum(sizes.values())


def times_of(length: int) -> list[list[float]]:
    """Returns the seconds of steps by the full matrix, and in blocks, in turns."""
    samples = max(1, PAIRS // length**2)
    step, steps = unit_step(length, samples), max(1, 2 * PAIRS // (samples * length**2))

    def seconds(is_full: bool) -> float:
        start = time.process_time()
        with attention(is_full):
            for _ in range(steps):
                step().backward()
        return (time.process_time() - start) / steps

    return alternate(REPEATS, lambda: seconds(True), lambda: seconds(False))


def render_memory(found: dict[int, dict[str, int]]) -> str:
    """Returns the table of memory by length."""
    rows, before = [], None
    for length, one in found.items():
        full = one.get("full")
        ratio = f"{one['blocks'] / full:.2f}" if full else ""
        growth = f"{one['blocks'] / before:.1f}" if before else ""
        before = one["blocks"]
        sizes = [_mib(one[kind]) for kind in ("kept", "recomputed")]
        rows.append([f"{length:,}", _mib(full), _mib(one["blocks"]), ratio, growth, *sizes])
    headers = ["Tokens", "Full matrix", "In blocks", "Ratio", "To half as many", "Kept", "Kept, recomputed"]
    return (
        f"{table(headers, rows)}\n\n"
        f"MiB of one history through a unit with times, {COLUMNS} columns, {HEADS} heads, blocks of {BLOCK}, float32. "
        f"{_machine()}"
    )


def render_times(found: dict[int, list[list[float]]]) -> str:
    """Returns the table of times by length."""
    rows = []
    for length, (full, blocks) in found.items():
        medians = [f"{1000 * statistics.median(one):.3g} ms" for one in (full, blocks)]
        ratios = [one / other for one, other in zip(blocks, full, strict=True)]
        rows.append([f"{length:,}", f"{max(1, PAIRS // length**2)}", *medians, median_and_spread(ratios)])
    headers = ["Tokens", "Histories", "Full matrix", "In blocks", "Ratio"]
    return (
        f"{table(headers, rows)}\n\n"
        f"Forward and backward of as many histories as the trainer takes at once; medians of {REPEATS} turns. "
        f"{_machine()}"
    )


def _mib(size: int | None) -> str:
    return "" if size is None else f"{size / MIB:,.1f}"


def _machine() -> str:
    machine = describe_machine()
    return f"One thread of {machine['processor']}, torch {torch.__version__}."


if __name__ == "__main__":
    main()
