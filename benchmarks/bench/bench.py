"""Measures reading, training, saving and restoring, each beside a baseline.

    python -m trainer bench --out runs/bench
    python -m trainer bench csv --out runs/bench
    python -m trainer bench check --out runs/bench
    python -m trainer bench checkpoint --out runs/bench
    python -m trainer bench features --out runs/bench
    python -m trainer bench models --out runs/bench
    python -m trainer bench predict --out runs/bench
    python -m trainer bench roofline --out runs/bench
    python -m trainer bench growth --out runs/bench

Measurement and baseline alternate in one process, several times, so that a busy machine slows down both. A ratio is
the median of the ratios of all repeats.
"""

import contextlib
import io
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Literal

from benchmarks.bench.checkpoint import compare_checkpoints, render_restores, time_restores
from benchmarks.bench.comparison import Comparison, render_comparisons
from benchmarks.bench.growth import measure_growth, render_growth
from benchmarks.bench.models import compare_models
from benchmarks.bench.predict import compare_inference
from benchmarks.bench.reading import compare_check, compare_criteo, compare_csv, compare_readers
from benchmarks.bench.roofline import measure_roofline, render_roofline
from benchmarks.bench.setting import make_config, make_data
from benchmarks.bench.training import compare_features, compare_loops
from benchmarks.machine import describe_machine
from torchx_recsys.apps.calibrate.steps import scratch_run
from trainer.config.root import load_config
from trainer.core.distributed import broadcast_from_rank0, process_group
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.models.builder import MODELS
from trainer.run.provenance import describe_run
from trainer.training.session import Session
from trainer.training.setup import open_session

Measured = tuple[str, dict[str, Any]]
"""What to print of a measurement, and its facts."""


def _compare_training(session: Session, steps: int, repeats: int) -> list[Comparison]:
    readers = []
    if session.context.is_rank0:
        readers = compare_readers(session, repeats) + compare_criteo(session, repeats)
    return readers + compare_loops(session, steps, repeats)


def _shown(comparisons: list[Comparison]) -> Measured:
    facts = [asdict(one) | {"ratio": one.ratio} for one in comparisons]
    return render_comparisons(comparisons), {"comparisons": facts}


def _roofline(session: Session, steps: int, repeats: int) -> Measured:
    rates, bounds = measure_roofline(session, steps, repeats)
    return render_roofline(rates, bounds), {"rates": asdict(rates), "parts": [asdict(one) for one in bounds]}


def _compared(compare: Callable[[Session, int, int], list[Comparison]]) -> Callable[[Session, int, int], Measured]:
    return lambda session, steps, repeats: _shown(compare(session, steps, repeats))


MEASURE = {
    "training": _compared(_compare_training),
    "csv": _compared(compare_csv),
    "check": _compared(compare_check),
    "checkpoint": _compared(compare_checkpoints),
    "features": _compared(compare_features),
    "predict": _compared(compare_inference),
    "roofline": _roofline,
}
"""Measurements of one model, by name."""


def bench(
    what: Literal[
        "training", "csv", "check", "checkpoint", "features", "models", "predict", "roofline", "growth"
    ] = "training",
    /,
    out: str = "runs/bench",
    rows: int = 2_000_000,
    global_batch_size: int = 8192,
    steps: int = 40,
    repeats: int = 5,
    models: tuple[str, ...] = (),
    of: str = "",
) -> None:
    """Measures the loader and the training loop, saves and restores, features, models, predictions, and prints tables.

    training: the loader beside plain pyarrow and beside a reader that makes Python objects, and beside pyarrow on data
    with nulls and ids beyond the tables, on one core and by the processor time that they take; training from Parquet
    beside training on batches in memory; that beside a loop written by hand, which does nothing but step on the same
    batches.

    csv: the loader on CSV files beside plain pyarrow on the same, plain and compressed, and the pass that indexes them;
    on one core, by processor time.

    check: data.check of all rows beside plain pyarrow, with figures of 50,000 rows and of 10,000; on one core, by
    processor time.

    checkpoint: steps during saves beside steps without, with a core to spare and without; saving and restoring beside
    plain writing and reading of the same bytes through the same file system; how long jobs of 1, 2 and 4 ranks take to
    restore (not under torchrun).

    features: training with each feature that is off by default, beside training without it, both from memory.

    models: training with each built-in model, as its ready-made configuration for MovieLens has it, beside the same
    model with unsharded tables in a bare torch loop, both from memory, on random ratings; on several ranks the bare
    loop exchanges nothing.

    predict: predictions of all rows, written with all columns of the data, beside an evaluation of the same rows.

    roofline: each part of a step, on batches in memory, beside the least time that it can take: its matrix products at
    the rate of a large one, the bytes that it reads and writes at the rate of a large copy, the bytes that it sends at
    the rate of a large exchange, each measured here.

    growth: the processor time of a step of DeepFM with 3, 26 and 200 tables, in global batches of 256 to 65,536, from
    memory. Most of a step in a small batch is overhead, which does not grow with the batch.

    Under torchrun all but the loader's run on all ranks. Writes `OUT/bench-WHAT.json` with every repeat.

    Args:
        what: What to measure.
        out: Directory for the results, and for the data, in Criteo's shape, which is made once; any fsspec URL.
        rows: Samples of the data set; `models` and `growth` make as many as they keep in memory.
        global_batch_size: Samples per step, over all ranks; `growth` has its own.
        steps: Steps per repeat of a training loop.
        repeats: Repeats of everything.
        models: Built-in models to measure, with `models` only. Unset: all.
        of: Configuration to measure, with `roofline` only. Unset: the benchmark's own model and data.

    Raises:
        InputError: An argument is out of range, there is no such model, or OUT holds data of other settings.
    """
    settings = {"rows": rows, "global_batch_size": global_batch_size, "steps": steps, "repeats": repeats}
    for name, value in settings.items():
        if value < 1:
            raise InputError(f"--{name.replace('_', '-')} is {value}; it must be 1 or more")
    if models and what != "models":
        raise InputError(f"--models is {' '.join(models)}, which `bench {what}` does not use; leave it out")
    if of and what != "roofline":
        raise InputError(f"--of is '{of}', which `bench {what}` does not use; leave it out")
    config, run = load_config(of) if of else make_config(out, global_batch_size), RunDirectory(out)
    with process_group() as context, scratch_run(run, context) as scratch:
        with contextlib.redirect_stdout(io.StringIO()):
            if what == "models":
                names = models or tuple(MODELS)
                shown, facts = _shown(compare_models(names, scratch, global_batch_size, steps, repeats, context))
            elif what == "growth":
                costs = measure_growth(scratch, context, steps, repeats)
                shown, facts = render_growth(costs), {"costs": [asdict(one) for one in costs]}
            else:
                if not of:
                    broadcast_from_rank0(context, lambda: make_data(out, rows))
                with open_session(config, scratch.url, "never", context) as session:
                    shown, facts = MEASURE[what](session, steps, repeats)
        if what == "checkpoint" and context.world_size == 1:
            restores = time_restores(config, scratch, repeats)
            shown += "\n\n" + render_restores(restores)
            facts |= {"restores": [asdict(one) for one in restores]}
        if context.is_rank0:
            print(shown)
            run.write_json(
                f"bench-{what}.json", describe_run(context, machine=describe_machine(), settings=settings) | facts
            )
            print(f"\nevery repeat is in {without_secrets(run.url_of(f'bench-{what}.json'))}")
