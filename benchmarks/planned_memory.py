"""Compares the forecast memory of plans with the measured memory.

Writes docs/explanation/planner.md.
Takes a few minutes.

Each case trains a model on Gloo ranks of this machine under a profile that records every allocation from the build of
the model on. docs/planned_memory.json keeps the peaks and the plans, so that forecasts can be compared anew.
"""

import gc
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.profiler import ProfilerActivity, profile
from torchrec.distributed.types import ShardingPlan

from benchmarks.ranks import run_on_ranks
from docs.generate import ROOT, table, write_measured
from torchx_recsys.planner.hardware import Cluster
from torchx_recsys.planner.rank_memory import NONE, memory_of
from trainer.config.root import Config
from trainer.core.console import quiet_libraries
from trainer.core.distributed import DistributedContext, process_group
from trainer.models.builder import build_model
from trainer.models.embeddings import table_shapes
from trainer.plan.make_plan import problem_of
from trainer.plan.plan_file import load_plan
from trainer.plan.sharding_plan import shards_in_plan
from trainer.training.setup import open_session

PAGE, KEPT = ROOT / "docs" / "explanation" / "planner.md", ROOT / "docs" / "planned_memory.json"
STEPS, BATCH, FILE_ROWS = 4, 4096, 6 * 4096
ROWS = {"user": 300_000, "ad": 150_000, "site": 60_000, "topics": 40_000, "city": 3_000, "device": 500}
HOTNESS = {"topics": 10, "site": 3}
ITEMS, LONGEST = 150_000, 20
WATCHED, MOST_WATCHED = 50, 200  # mean and maximum length of histories, by Zipf's law
LONG, MOST_LONG = 400, 1000
POOLED = {name: {"rows": rows, "hotness": HOTNESS.get(name, 1)} for name, rows in ROWS.items()}
OF_ITEMS = {"rows": ITEMS, "table": "items", "pooling": "none"}
SEQUENCES = {
    "history": OF_ITEMS | {"max_ids": LONGEST, "hotness": LONGEST},
    "item": OF_ITEMS | {"max_ids": 1},
    "user": POOLED["user"],
}
JAGGED = {
    "watched": OF_ITEMS | {"max_ids": MOST_WATCHED, "hotness": WATCHED},
    "item": OF_ITEMS | {"max_ids": 1},
}
LONG_HISTORIES = {
    "heard": OF_ITEMS | {"max_ids": MOST_LONG, "hotness": LONG},
    "item": OF_ITEMS | {"max_ids": 1},
}
HAVE_LAYERS_OVER = ("dlrm", "dlrm_dcn", "deepfm", "wide_deep", "din", "sasrec", "bst", "hstu", "dbmtl")
TASKS = {"label": {"label": "label"}, "bought": {"label": "bought"}}
OF_ESMM = {
    "ctr": {"label": "label", "output": "log_probability"},
    "ctcvr": {"label": "bought", "output": "log_probability"},
}
EXPERTS = {"shared": 8, "layers": [1024, 64]}
RETRIEVAL = {"found": {"label": "label", "prediction": "vectors", "group": "ad", "loss": "in_batch_softmax"}}


def _model(name: str, columns: int = 32, **options: Any) -> dict[str, Any]:
    layers = {"over_layers": [256, 128]} if name in HAVE_LAYERS_OVER else {}
    return {"model": {"name": name, "embedding_dim": columns, **layers, **options}}


def _types(*names: str, **of_tables: str) -> dict[str, Any]:
    tables = {table: {"sharding_types": [kind]} for table, kind in of_tables.items()}
    return {"planner": {"sharding_types": list(names), "tables": tables}}


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "dlrm, planned": (1, _model("dlrm", dense_layers=[128])),
    "dlrm_dcn, Adam": (1, _model("dlrm_dcn", dense_layers=[128]) | {"optimizer": {"sparse": {"name": "adam"}}}),
    "din, planned": (1, _model("din", target="item", history="history") | {"data": {"sparse": SEQUENCES}}),
    "bst, planned": (1, _model("bst", target="item", history="history") | {"data": {"sparse": SEQUENCES}}),
    "mmoe, wide experts": (1, _model("mmoe", 16, experts=EXPERTS) | {"tasks": TASKS}),
    "mmoe, wide experts, recomputed": (
        1,
        _model("mmoe", 16, experts=EXPERTS) | {"tasks": TASKS, "train": {"recompute": True}},
    ),
    "two_tower, in-batch softmax": (
        1,
        _model("two_tower", item_features=["ad", "topics"], vector_dim=32)
        | {"tasks": RETRIEVAL, "data": {"groups": ["ad"]}},
    ),
    "dlrm, planned, two ranks": (2, _model("dlrm", 64, dense_layers=[128])),
    "deepfm, column-wise": (2, _model("deepfm", 64) | _types("column_wise")),
    "mmoe, replicated": (2, _model("mmoe", 16) | {"tasks": TASKS} | _types("data_parallel")),
    "sasrec, row-wise": (
        2,
        _model("sasrec", target="item", history="history") | {"data": {"sparse": SEQUENCES}} | _types("row_wise"),
    ),
    "hstu, row-wise, jagged": (
        2,
        _model("hstu", target="item", history="watched", attention_blocks=2)
        | {"data": {"sparse": JAGGED, "global_batch_size": 2048}}
        | _types("row_wise"),
    ),
    "dlrm_hstu, long histories": (
        2,
        _model("dlrm_hstu", 64, target="item", history="heard", attention_blocks=2, attention_heads=2)
        | {"data": {"sparse": LONG_HISTORIES, "global_batch_size": 128}}
        | _types("row_wise"),
    ),
    "dlrm_hstu, long histories, recomputed": (
        2,
        _model("dlrm_hstu", 64, target="item", history="heard", attention_blocks=2, attention_heads=2)
        | {"data": {"sparse": LONG_HISTORIES, "global_batch_size": 128}, "train": {"recompute": True}}
        | _types("row_wise"),
    ),
    "dbmtl, LAMB, table-wise": (
        2,
        _model("dbmtl") | {"tasks": TASKS, "optimizer": {"sparse": {"name": "lamb"}}} | _types("table_wise"),
    ),
    "wide_deep, mixed": (
        4,
        _model("wide_deep", 64)
        | _types(user="row_wise", ad="column_wise", site="table_wise", topics="table_wise", city="data_parallel"),
    ),
    "ple, row-wise, averages": (
        4,
        _model("ple")
        | {"tasks": TASKS, "optimizer": {"ema": {"decay": 0.99, "tables": True, "evaluate": False}}}
        | _types("row_wise"),
    ),
    "esmm, Adagrad, half precision": (
        4,
        _model("esmm", 128, table_precision="fp16")
        | {"tasks": OF_ESMM, "optimizer": {"sparse": {"name": "adagrad"}}}
        | _types("table_wise", "column_wise"),
    ),
}


def case_config(case: str, folder: Path | str) -> Config:
    """Returns the configuration of a case; `folder` holds the data."""
    changes = dict(CASES[case][1])
    data = {
        "train": [f"{folder}/data"],
        "global_batch_size": BATCH,
        "shuffle_window_rows": BATCH,
        "labels": ["label", "bought"] if "tasks" in changes else ["label"],
        "dense": {f"d{number}": {} for number in range(8)},
        "sparse": POOLED,
    } | changes.pop("data", {})
    train, report = {"steps": STEPS + 1} | changes.pop("train", {}), {"tensorboard": False}
    return Config.model_validate({"data": data, "train": train, "report": report} | changes)


def write_data(folder: Path) -> None:
    """Writes random rows with all columns of all cases."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {
        name: random.random(FILE_ROWS).astype(np.float32) for name in [f"d{number}" for number in range(8)]
    }
    columns |= {name: random.integers(0, 2, FILE_ROWS).astype(np.float32) for name in ("label", "bought")}
    for name, (rows, count) in {
        **{name: (rows, HOTNESS.get(name, 1)) for name, rows in ROWS.items()},
        "item": (ITEMS, 1),
        "history": (ITEMS, LONGEST),
    }.items():
        ids = random.integers(0, rows, (FILE_ROWS, count))
        columns[name] = ids[:, 0] if count == 1 else pa.array(list(ids))
    for name, mean, most in (("watched", WATCHED, MOST_WATCHED), ("heard", LONG, MOST_LONG)):
        lengths = np.rint(most * random.random(FILE_ROWS) ** (most / mean - 1)).astype(int)
        columns[name] = pa.array([random.integers(0, ITEMS, length) for length in lengths])
    (folder / "data").mkdir()
    pq.write_table(pa.table(columns), folder / "data" / "part.parquet", row_group_size=BATCH)


def measure(cases: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Trains the cases and returns the ranks, the plan and the peak bytes of each rank, by case."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        for ranks in sorted({CASES[case][0] for case in cases}):
            chosen = [case for case in cases if CASES[case][0] == ranks]
            run_on_ranks(ranks, _run, chosen, folder)
            for case in chosen:
                files = [folder / f"{case}-{rank}.json" for rank in range(ranks)]
                of_ranks = [json.loads(file.read_text()) for file in files]
                peaks = [one["peak"] for one in of_ranks]
                found[case] = {"ranks": ranks, "plan": of_ranks[0]["plan"], "peaks": peaks}
    return found


def _run(cases: Sequence[str], folder: Path) -> None:
    quiet_libraries()
    with process_group() as context:
        for case in cases:
            found = _run_case(case, folder, context)
            (folder / f"{case}-{context.rank}.json").write_text(json.dumps(found))
            gc.collect()  # or the next case's record would free this case's cycles


def _run_case(case: str, folder: Path, context: DistributedContext) -> dict[str, Any]:
    config, out = case_config(case, folder), str(folder / f"run of {case}")
    record = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with record, open_session(config, out, "never", context) as session:
        step = session.training_step()
        for number in range(1, STEPS + 1):
            step.take(number, session.batches)
        step.detach()
    return {"peak": _peak(record), "plan": session.model.plan_json}


def _peak(record: profile) -> int:
    """Returns the most bytes allocated at once, by the allocator's own record."""
    results: Any = record.profiler.kineto_results  # pyrefly: ignore[missing-attribute]
    events = [event for event in results.events() if event.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(int(np.cumsum(sizes).max()), 0)


def forecast(case: str, plan: dict[str, Any]) -> list[int]:
    """Returns the forecast bytes of each rank, for a plan in the form of plan.json."""
    ranks, _ = CASES[case]
    config = case_config(case, "data")
    model = build_model(config.data, config.model, config.predictions(), torch.device("meta"))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(plan, file)
        file.flush()
        loaded: ShardingPlan = load_plan(file.name, table_shapes(model), ranks, ranks, "cpu")
    problem = problem_of(model, config, Cluster(None, 1, ranks, on_gpu=False))
    shards = shards_in_plan(loaded, problem.tables, ranks)
    found = memory_of(shards, problem.tables, problem.topology, problem.dense.memory, NONE)
    return found.total.sum(axis=1).astype(int).tolist()


def error(case: str, figures: dict[str, Any]) -> float:
    """Returns the relative error of the forecast for the fullest rank."""
    return max(forecast(case, figures["plan"])) / max(figures["peaks"]) - 1


def render(figures: dict[str, dict[str, Any]]) -> str:
    """Returns a table of the cases: measured and forecast bytes of the fullest rank."""
    rows = []
    for case, one in figures.items():
        mib = [max(found) / 2**20 for found in (one["peaks"], forecast(case, one["plan"]))]
        rows.append([case, str(one["ranks"]), f"{mib[0]:.1f}", f"{mib[1]:.1f}", f"{error(case, one):+.1%}"])
    return table(["Model and plan", "Ranks", "Measured MiB", "Forecast MiB", "Error"], rows)


def main() -> None:
    """Measures the named cases, or all, and rewrites the table of all kept cases."""
    named = [case for case in CASES if any(word in case for word in sys.argv[1:])]
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept |= measure(named or [*CASES])
    KEPT.write_text(json.dumps({case: kept[case] for case in CASES if case in kept}, indent=1) + "\n")
    write_measured(PAGE, "planned memory", render({case: kept[case] for case in CASES if case in kept}))


if __name__ == "__main__":
    main()
