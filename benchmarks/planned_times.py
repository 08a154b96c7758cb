"""Compares planned and measured times of steps.

Writes docs/explanation/step_times.md.
Takes some minutes of a quiet machine.

Calibrates this machine on two ranks, then trains two models under nine plans each, in turn within one job, so that a
busy machine slows down all plans. Plans are drawn at random, and chosen by planned time alone, so that the times
differ. The measure is the processor time of a rank, without waits for other ranks. Every step is in
docs/planned_times.json.
"""

import contextlib
import io
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from benchmarks.machine import describe_machine
from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.calibrate.steps import batches_in_memory
from torchx_recsys.planner.hardware import Cluster
from trainer.config.root import Config
from trainer.core.console import quiet_libraries
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all, process_group
from trainer.models.embeddings import table_shapes
from trainer.plan.make_plan import problem_of
from trainer.plan.plan_file import load_plan
from trainer.plan.sharding_plan import time_of_plan
from trainer.training.setup import open_session
from trainer.training.sharded_model import build_unsharded_model
from trainer.training.step import TrainingStep

PAGE, RAW = ROOT / "docs" / "explanation" / "step_times.md", ROOT / "docs" / "planned_times.json"
RANKS, BATCHES = 2, 8
TURNS, STEPS = 12, 5  # each plan takes 5 steps at a time, 60 in all
TOLERANCE = 0.3
DRAWN, CHOSEN = 300, 9  # numbers of plans of a model
APART = 1.1  # minimum ratio of times between chosen plans
ROUNDING = 1e-9
KINDS = ("table_wise", "row_wise", "column_wise", "data_parallel")
Placed = tuple[str, tuple[int, ...]]
MODELS: dict[str, dict[str, Any]] = {
    "DLRM, 20 tables of 32 columns": {
        "model": {"embedding_dim": 32, "dense_layers": [64], "over_layers": [64]},
        "rows": [2_000 * (1 + number) for number in range(10)] + [12_000 * (1 + number) for number in range(10)],
        "hotness": [1, 40] * 10,
        "global_batch_size": 4096,
    },
    "DeepFM, 8 tables of 64 columns": {
        "model": {"name": "deepfm", "embedding_dim": 64, "over_layers": [64]},
        "rows": [2_000, 5_000, 10_000, 20_000, 40_000, 60_000, 80_000, 100_000],
        "hotness": [20] * 8,
        "global_batch_size": 4096,
    },
}


def draw_plan(tables: int, seed: int) -> tuple[Placed, ...]:
    """Returns a random plan, with a random bias towards some types and towards one rank."""
    draw = random.Random(seed)
    weights, leaning = [draw.expovariate(1.0) ** 2 for _ in KINDS], draw.random()
    plan = []
    for kind in draw.choices(KINDS, weights, k=tables):
        plan.append((kind, (int(draw.random() > leaning),) if kind == "table_wise" else tuple(range(RANKS))))
    return tuple(plan)


def choose(times: Sequence[float]) -> list[int]:
    """Returns the numbers of plans from the fastest to the slowest, as evenly spaced as the times allow."""
    order = np.argsort(times, kind="stable").tolist()
    factor = max(APART, (times[order[-1]] / times[order[0]]) ** (1 / (CHOSEN - 1)))
    chosen = order[:1]
    for number in order[1:]:
        # Each by its own place on the scale, so that a gap does not move later plans.
        place = times[order[0]] * factor ** len(chosen) * (1 - ROUNDING)
        if times[number] >= max(place, APART * times[chosen[-1]]) and len(chosen) < CHOSEN:
            chosen.append(number)
    return chosen


def describe(plan: Sequence[Placed]) -> str:
    """Returns the number of tables of each placement."""
    counts = Counter(kind if kind != "table_wise" else f"table_wise on rank {ranks[0]}" for kind, ranks in plan)
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))


def main() -> None:
    """Calibrates, measures, and rewrites the table."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/host.toml"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        subprocess.run([*torchrun, "-m", "trainer", "calibrate", "--out", file], check=True)
        subprocess.run([*torchrun, "-m", "benchmarks.planned_times", file, folder], check=True)
    write_measured(PAGE, "step times", render(json.loads(RAW.read_text())))


def measure(calibration: str, folder: str) -> None:
    """Measures all plans of both models on the ranks of this job, and writes measured and planned times."""
    quiet_libraries()
    with process_group() as context:
        found = [_measure_model(name, calibration, f"{folder}/{number}", context) for number, name in enumerate(MODELS)]
        if context.is_rank0:
            facts = {"machine": describe_machine(), "ranks": RANKS, "torch": torch.__version__}
            content = facts | {"calibration": Path(calibration).read_text(), "models": found}
            RAW.write_text(json.dumps(content) + "\n")


def _measure_model(name: str, calibration: str, folder: str, context: DistributedContext) -> dict[str, Any]:
    broadcast_from_rank0(context, lambda: _write_rows(MODELS[name], folder))
    config = _config(MODELS[name], folder, calibration)
    planned = broadcast_from_rank0(context, lambda: _choose_plans(config, folder))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        runs = []
        for number, plan in enumerate(planned):
            changed = config.model_copy(update={"planner": config.planner.model_copy(update={"plan": plan["file"]})})
            session = stack.enter_context(open_session(changed, f"{folder}/run-{number}", "never", context))
            runs.append((session.training_step(), itertools.cycle(batches_in_memory(session))))
        times = _take_turns(runs)
    of_ranks = gather_to_all(times, context)
    plans = [
        {"plan": plan["plan"], "predicted": plan["predicted"], "measured": [rank[number] for rank in of_ranks]}
        for number, plan in enumerate(planned)
    ]
    return {"model": name, "plans": plans}


def _take_turns(runs: Sequence[tuple[TrainingStep, Iterator[Any]]]) -> list[list[float]]:
    """Returns the processor time of every step of every plan, in milliseconds."""
    times: list[list[float]] = [[] for _ in runs]
    for turn in range(-1, TURNS):
        for number, (step, batches) in enumerate(runs):
            for one in range(STEPS):
                start = time.process_time()
                step.take(1 + (turn + 1) * STEPS + one, batches)
                if turn >= 0:
                    times[number].append(round(1000 * (time.process_time() - start), 2))
    for step, _ in runs:
        step.detach()
    return times


def _write_rows(model: dict[str, Any], folder: str) -> None:
    draw, rows = np.random.default_rng(0), BATCHES * model["global_batch_size"]
    columns: dict[str, Any] = {"label": draw.integers(0, 2, rows).astype(np.float32)}
    columns |= {f"d{number}": draw.standard_normal(rows).astype(np.float32) for number in range(4)}
    for number, (size, hotness) in enumerate(zip(model["rows"], model["hotness"], strict=True)):
        ids = pa.array(draw.integers(0, size, rows * hotness))
        ends = pa.array(np.arange(0, len(ids) + 1, hotness, dtype=np.int32))
        columns[f"s{number:02}"] = ids if hotness == 1 else pa.ListArray.from_arrays(ends, ids)
    Path(folder).mkdir(parents=True)
    pq.write_table(pa.table(columns), f"{folder}/rows.parquet", row_group_size=rows // BATCHES)


def _config(model: dict[str, Any], folder: str, calibration: str) -> Config:
    sparse = {
        f"s{number:02}": {"rows": rows, "hotness": float(hotness)}
        for number, (rows, hotness) in enumerate(zip(model["rows"], model["hotness"], strict=True))
    }
    data = {
        "train": [f"{folder}/rows.parquet"],
        "dense": {f"d{number}": {} for number in range(4)},
        "sparse": sparse,
        "global_batch_size": model["global_batch_size"],
    }
    planner = {"calibration": calibration, "sharding_types": ["table_wise"]}
    train = {"steps": (TURNS + 2) * STEPS}
    return Config.model_validate({"data": data, "model": model["model"], "planner": planner, "train": train})


def _choose_plans(config: Config, folder: str) -> list[dict[str, Any]]:
    """Writes plans for jobs, and returns the chosen plans with the planned time of a step."""
    model = build_unsharded_model(config, torch.device("meta"))
    drawn = dict.fromkeys(draw_plan(len(config.data.sparse), seed) for seed in range(DRAWN))
    plans: list[dict[str, Any]] = []
    for number, plan in enumerate(drawn):
        file = f"{folder}/{number}.json"
        _write_plan(model, plan, Path(file))
        plans.append({"plan": describe(plan), "file": file, "predicted": _predict(config, model, file)})
    return [plans[number] for number in choose([slowest_rank(plan["predicted"]) for plan in plans])]


def _write_plan(model: torch.nn.Module, plan: Sequence[Placed], file: Path) -> None:
    placed = {}
    for (name, (rows, columns)), (kind, ranks) in zip(table_shapes(model).items(), plan, strict=True):
        placed[name] = {
            "sharding_type": kind,
            "compute_kernel": "dense" if kind == "data_parallel" else "fused",
            "rows": rows,
            "columns": columns,
            "shard_columns": columns // (RANKS if kind == "column_wise" else 1),
            "ranks": ",".join(map(str, ranks)),
        }
    path = next(path for path, module in model.named_modules() if isinstance(module, EmbeddingBagCollection))
    file.write_text(json.dumps({"version": 2, "world_size": RANKS, "modules": {path: placed}}))


def _predict(config: Config, model: torch.nn.Module, file: str) -> dict[str, Any]:
    plan = load_plan(file, table_shapes(model), RANKS, RANKS, "cpu")
    time = time_of_plan(plan, problem_of(model, config, Cluster(None, 1, RANKS, on_gpu=False)))
    return {
        "phases": list(time.phases),
        "by_rank": time.by_rank.tolist(),
        "dense": time.dense,
        "constant": time.constant,
    }


def slowest_rank(predicted: dict[str, Any]) -> float:
    """Returns the time of the slowest rank without waits for other ranks, which processor time does not count."""
    return max(map(sum, predicted["by_rank"])) + predicted["dense"] + predicted["constant"]


def render(measured: dict[str, Any]) -> str:
    """Returns the table of planned and measured times, and their agreement.

    Args:
        measured: The content of docs/planned_times.json.
    """
    rows, of_models, shapes = [], [], []
    for model in measured["models"]:
        pairs = []
        name, _, shape = model["model"].partition(", ")
        shapes.append(f"{name} has {shape}")
        for one in model["plans"]:
            planned = slowest_rank(one["predicted"])
            found = max(statistics.median(rank) for rank in one["measured"])
            pairs.append((planned, found))
            rows.append([name, one["plan"], f"{planned:.1f}", f"{found:.1f}", f"{planned / found:.2f}"])
        of_models.append(pairs)
    everything = [pair for pairs in of_models for pair in pairs]
    ratios = [planned / found for planned, found in everything]
    headers = ["Model", "Tables", "Planned, ms", "Measured, ms", "Ratio"]
    rank_of_each = ", ".join(f"{spearman(pairs):.2f}" for pairs in of_models)
    off = sum(abs(ratio - 1) > TOLERANCE for ratio in ratios)
    machine = f"{measured['machine']['processor']}, torch {measured['torch']}"
    return (
        f"{table(headers, rows)}\n\n"
        f"{', '.join(shapes)}. "
        f"Spearman's correlation is {spearman(everything):.2f} over all {len(everything)} plans, and {rank_of_each} "
        f"within the models; ratios are {min(ratios):.2f} to {max(ratios):.2f}, {off} of them off by more than "
        f"{TOLERANCE:.0%}. Medians of {TURNS * STEPS} steps of the slower of {measured['ranks']} ranks, processor "
        f"time, {machine}."
    )


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Returns Spearman's rank correlation of pairs without ties."""
    places = [np.argsort(np.argsort(column)) for column in zip(*pairs, strict=True)]
    return float(np.corrcoef(np.array(places))[0, 1])


if __name__ == "__main__":
    measure(*sys.argv[1:]) if sys.argv[1:] else main()
