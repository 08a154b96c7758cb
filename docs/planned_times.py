"""Compares planned and measured times of steps, for the table in docs/step_times.md: `python -m docs.planned_times`.

Calibrates this machine on two ranks, then trains two models under twelve plans each, in turns within one job, so that a
busy machine slows down all of them. The measure is the processor time of a rank, in which no wait for others counts.
Every step is in docs/planned_times.json.
"""

import contextlib
import io
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from docs.generate import ROOT, table, write_measured
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all, process_group
from trainer.core.logging import quiet_libraries
from trainer.models.embeddings import table_shapes
from trainer.plan.allowed_types import with_allowed_types
from trainer.plan.plan_file import load_plan
from trainer.plan.ranks import ranks_to_plan_for
from trainer.plan.step_time import time_of_plan
from trainer.tools.bench.comparison import describe_machine
from trainer.tools.bench.setting import batches_in_memory
from trainer.training.setup import open_session
from trainer.training.sharded_model import build_unsharded_model
from trainer.training.step import TrainingStep

PAGE, RAW = ROOT / "docs" / "step_times.md", ROOT / "docs" / "planned_times.json"
RANKS, BATCHES = 2, 8
TURNS, STEPS = 12, 5  # steps of a plan at a time: 60 in all
TOLERANCE = 0.3
Placed = tuple[str, Sequence[int]]
MODELS: dict[str, dict[str, Any]] = {
    "20 tables of 32 columns, an id each": {
        "model": {"embedding_dim": 32, "dense_layers": [128], "over_layers": [128]},
        "rows": [2_000 * (1 + number) for number in range(10)] + [20_000 * (1 + number) for number in range(10)],
        "hotness": 1,
        "global_batch_size": 8192,
    },
    "6 tables of 64 columns, 10 ids each": {
        "model": {"name": "deepfm", "embedding_dim": 64, "over_layers": [128]},
        "rows": [5_000, 20_000, 50_000, 100_000, 200_000, 300_000],
        "hotness": 10,
        "global_batch_size": 4096,
    },
}


def _half(number: int, tables: int) -> bool:
    return number < tables // 2  # the smaller ones: tables are in the order of their rows


PLANS: dict[str, Callable[[int, int], Placed]] = {
    "table_wise, in turns": lambda number, _: ("table_wise", [number % 2]),
    "row_wise": lambda *_: ("row_wise", [0, 1]),
    "column_wise": lambda *_: ("column_wise", [0, 1]),
    "data_parallel": lambda *_: ("data_parallel", [0, 1]),
    "table_wise, all on one rank": lambda *_: ("table_wise", [0]),
    "table_wise, the large half on one rank": lambda number, tables: ("table_wise", [int(_half(number, tables))]),
    "table_wise, three of four on one rank": lambda number, _: ("table_wise", [int(number % 4 == 0)]),
    "small ones data_parallel, others row_wise": lambda number, tables: (
        "data_parallel" if _half(number, tables) else "row_wise",
        [0, 1],
    ),
    "small ones data_parallel, others table_wise": lambda number, tables: (
        ("data_parallel", [0, 1]) if _half(number, tables) else ("table_wise", [number % 2])
    ),
    "small ones column_wise, others row_wise": lambda number, tables: (
        "column_wise" if _half(number, tables) else "row_wise",
        [0, 1],
    ),
    "small ones row_wise, others on one rank": lambda number, tables: (
        ("row_wise", [0, 1]) if _half(number, tables) else ("table_wise", [1])
    ),
    "small ones on one rank, others column_wise": lambda number, tables: (
        ("table_wise", [0]) if _half(number, tables) else ("column_wise", [0, 1])
    ),
}


def main() -> None:
    """Calibrates, measures, and rewrites the table."""
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/host.toml"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        subprocess.run([*torchrun, "-m", "trainer", "calibrate", "--out", file], check=True)
        subprocess.run([*torchrun, "-m", "docs.planned_times", file, folder], check=True)
    write_measured(PAGE, "step times", render(json.loads(RAW.read_text())))


def measure(calibration: str, folder: str) -> None:
    """Measures all plans of both models on the ranks of this job, and writes what they took beside what was planned."""
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
    planned = broadcast_from_rank0(context, lambda: [_plan(config, plan, folder) for plan in PLANS])
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        runs = []
        for number, plan in enumerate(planned):
            changed = config.model_copy(update={"planner": config.planner.model_copy(update={"plan": plan["file"]})})
            session = stack.enter_context(open_session(changed, f"{folder}/run-{number}", "never", context))
            runs.append((TrainingStep(session), itertools.cycle(batches_in_memory(session))))
        times = _take_turns(runs)
    of_ranks = gather_to_all(times, context)
    plans = [
        {"plan": plan, "predicted": planned[number]["predicted"], "measured": [rank[number] for rank in of_ranks]}
        for number, plan in enumerate(PLANS)
    ]
    return {"model": name, "plans": plans}


def _take_turns(runs: Sequence[tuple[TrainingStep, Iterator[Any]]]) -> list[list[float]]:
    """Returns the milliseconds of processor time of every step of every plan."""
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
    random, rows = np.random.default_rng(0), BATCHES * model["global_batch_size"]
    columns: dict[str, Any] = {"label": random.integers(0, 2, rows).astype(np.float32)}
    columns |= {f"d{number}": random.standard_normal(rows).astype(np.float32) for number in range(4)}
    for number, size in enumerate(model["rows"]):
        ids = pa.array(random.integers(0, size, rows * model["hotness"]))
        ends = pa.array(np.arange(0, len(ids) + 1, model["hotness"], dtype=np.int32))
        columns[f"s{number:02}"] = ids if model["hotness"] == 1 else pa.ListArray.from_arrays(ends, ids)
    Path(folder).mkdir(parents=True)
    pq.write_table(pa.table(columns), f"{folder}/rows.parquet", row_group_size=rows // BATCHES)


def _config(model: dict[str, Any], folder: str, calibration: str) -> Config:
    sparse = {
        f"s{number:02}": {"rows": rows, "hotness": float(model["hotness"])} for number, rows in enumerate(model["rows"])
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


def _plan(config: Config, plan: str, folder: str) -> dict[str, Any]:
    """Writes a plan for jobs, and returns its file and the milliseconds that a step is expected to take."""
    model = build_unsharded_model(config, torch.device("meta"))
    shapes = table_shapes(model)
    placed = {}
    for number, (name, (rows, columns)) in enumerate(shapes.items()):
        kind, where = PLANS[plan](number, len(shapes))
        placed[name] = {
            "sharding_type": kind,
            "compute_kernel": "dense" if kind == "data_parallel" else "fused",
            "rows": rows,
            "columns": columns,
            "shard_columns": columns // (2 if kind == "column_wise" else 1),
            "ranks": ",".join(map(str, where)),
        }
    path = next(path for path, module in model.named_modules() if isinstance(module, EmbeddingBagCollection))
    content = {"version": 2, "world_size": RANKS, "modules": {path: placed}}
    file = Path(folder, f"{list(PLANS).index(plan)}.json")
    file.write_text(json.dumps(content))
    return {"file": str(file), "predicted": _predict(config, model, str(file))}


def _predict(config: Config, model: torch.nn.Module, file: str) -> dict[str, Any]:
    planner = with_allowed_types(config)
    ranks = ranks_to_plan_for(config.data, planner, config.comms, RANKS, RANKS, "cpu")
    plan = load_plan(file, table_shapes(model), RANKS, RANKS, "cpu")
    time = time_of_plan(plan, model, config, planner, ranks)
    return {
        "phases": list(time.phases),
        "by_rank": time.by_rank.tolist(),
        "dense": time.dense,
        "constant": time.constant,
    }


def slowest_rank(predicted: dict[str, Any]) -> float:
    """Returns the time of the slowest rank without its waits for others, which processor time does not count."""
    return max(map(sum, predicted["by_rank"])) + predicted["dense"] + predicted["constant"]


def render(measured: dict[str, Any]) -> str:
    """Returns the table of planned and measured times, and how well they agree.

    Args:
        measured: The content of docs/planned_times.json.
    """
    rows, pairs = [], []
    for model in measured["models"]:
        for one in model["plans"]:
            planned = slowest_rank(one["predicted"])
            found = max(statistics.median(rank) for rank in one["measured"])
            pairs.append((planned, found))
            rows.append([model["model"], one["plan"], f"{planned:.1f}", f"{found:.1f}", f"{planned / found:.2f}"])
    ratios = [planned / found for planned, found in pairs]
    headers = ["Model", "Plan", "Planned, ms", "Measured, ms", "Ratio"]
    of_models = [pairs[start : start + len(PLANS)] for start in range(0, len(pairs), len(PLANS))]
    rank_of_each = ", ".join(f"{spearman(some):.2f}" for some in of_models)
    off = sum(abs(ratio - 1) > TOLERANCE for ratio in ratios)
    machine = f"{measured['machine']['processor']}, torch {measured['torch']}"
    return (
        f"{table(headers, rows)}\n\n"
        f"Spearman's correlation is {spearman(pairs):.2f} over all {len(pairs)} plans, and {rank_of_each} within the "
        f"models; ratios are {min(ratios):.2f} to {max(ratios):.2f}, {off} of them off by more than {TOLERANCE:.0%}. "
        f"Medians of {TURNS * STEPS} steps of the slower of {measured['ranks']} ranks, processor time, "
        f"{machine}."
    )


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Returns Spearman's rank correlation of pairs without ties."""
    places = [np.argsort(np.argsort(column)) for column in zip(*pairs, strict=True)]
    return float(np.corrcoef(np.array(places))[0, 1])


if __name__ == "__main__":
    measure(*sys.argv[1:]) if sys.argv[1:] else main()
