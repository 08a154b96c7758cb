"""Measures the time of calls, and explains times by figures."""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

WARM_RUNS = 2


def nanoseconds(run: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Returns the time of a call, the median of some runs.

    On a CPU this is processor time, which counts no waits and which other processes hardly change.
    """
    on_gpu = device.type != "cpu"
    clock = time.perf_counter_ns if on_gpu else time.process_time_ns
    found = []
    for _ in range(WARM_RUNS + repeats):
        start = clock()
        run()
        if on_gpu:
            torch.get_device_module(device).synchronize()
        found.append(clock() - start)
    return float(statistics.median(found[WARM_RUNS:]))


def explain(counts: Sequence[Sequence[float]], times: Sequence[float]) -> list[float]:
    """Returns the time per unit of each thing that best explains measured times, by relative error, none below zero.

    Args:
        counts: The count of each thing in every measurement.
        times: The time of every measurement.
    """
    # Relative errors, so that long measurements do not decide alone. Negative figures are left out one by one, the
    # most negative first. scipy's nnls does this better, but would be a dependency for this alone.
    scaled = np.array(counts) / np.array(times)[:, None]
    kept = list(range(scaled.shape[1]))
    while kept:
        found, *_ = np.linalg.lstsq(scaled[:, kept], np.ones(len(times)), rcond=None)
        if found.min() >= 0:
            break
        kept.pop(int(np.argmin(found * scaled[:, kept].mean(axis=0))))
    figures = [0.0] * scaled.shape[1]
    for place, figure in zip(kept, found if kept else (), strict=True):
        figures[place] = float(figure)
    return figures
