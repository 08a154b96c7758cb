"""A model of one's own that reads embeddings by place sees the same columns under every plan and on any ranks."""

import json
import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from exported import ask, step_directory
from jobs import config, launch_rounds, losses, write_rows

from trainer.__main__ import main as trainer

pytestmark = pytest.mark.more("test_sharding.py and test_export.py have the usual order")

TYPES = ("table_wise", "row_wise", "column_wise", "data_parallel")
STEPS, HALF = 12, 6
# Two features share a table, with another one between them.
FEATURES = {
    "s2": {"rows": 105, "dimension": 16, "table": "shared"},
    "s0": {"rows": 100, "dimension": 16},
    "s4": {"rows": 105, "dimension": 16, "table": "shared"},
    "s5": {"rows": 105, "dimension": 24},
    "s1": {"rows": 101, "dimension": 16},
}
SEQUENCES = {
    "s2": {"rows": 105},
    "s0": {"rows": 100, "pooling": "none", "max_ids": 1},
    "s1": {"rows": 101},
    "s3": {"rows": 103, "pooling": "none", "max_ids": 1},
    "s5": {"rows": 105, "pooling": "none", "max_ids": 1},
}
MODELS = {
    "documented:concatenated": (FEATURES, ("shared", "s0", "s5", "s1"), {"hidden": 8}),
    "documented:OfSequences": (SEQUENCES, ("s2", "s0", "s1", "s3", "s5"), {}),
}


def plans(tables: tuple[str, ...]) -> list[dict]:
    """Returns a sharding type for each table, another one for 1, 2 and 4 ranks."""
    choose = random.Random(26)
    return [{name: {"sharding_types": [choose.choice(TYPES)]} for name in tables} for _ in range(3)]


def job(folder: Path, model: str, plan: dict, out: str, steps: int = STEPS) -> dict:
    features, _, arguments = MODELS[model]
    data = folder / "data"
    tree = config(data, planner__tables=plan, data__test=[str(data)], train__steps=steps)
    tree["data"]["sparse"] = features
    tree["model"] = {"name": model, "arguments": arguments, "embedding_dim": 16}
    return {"config": tree, "out": str(folder / f"{model.split(':')[1]}-{out}")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of each model on 1, 2 and 4 ranks, one that changes ranks and plan halfway, and one of cut tables on 1."""
    folder = tmp_path_factory.mktemp("orders")
    write_rows(folder / "data", [640])
    rounds: dict[int, list[dict]] = {ranks: [] for ranks in (1, 2, 4)}
    last: list[dict] = []
    for model, (_, tables, _) in MODELS.items():
        on_1, on_2, on_4 = plans(tables)
        cut = {name: {"sharding_types": ["column_wise"]} for name in tables}
        rounds[1] += [job(folder, model, on_1, "1"), job(folder, model, cut, "cut")]
        rounds[2].append(job(folder, model, on_2, "2"))
        rounds[4] += [job(folder, model, on_4, "4"), job(folder, model, on_4, "moved", HALF)]
        last.append(job(folder, model, on_2, "moved"))
    launch_rounds([*rounds.items(), (2, last)], folder)
    return folder


@pytest.mark.parametrize("model", [name.split(":")[1] for name in MODELS])
@pytest.mark.parametrize("out", ["2", "4", "moved", "cut"])
def test_every_plan_gives_the_same_losses(runs, model, out):
    assert losses(runs / f"{model}-{out}") == pytest.approx(losses(runs / f"{model}-1"), rel=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_an_export_answers_as_the_sharded_model_was_evaluated(runs, tmp_path, model):
    """The parity rows alone would not show it: export computes them from the checkpoint without shards."""
    run = str(runs / f"{model.split(':')[1]}-4")
    words = ["--out", run, "--to", str(tmp_path), "--split", "test"]
    assert trainer(["export", f"{run}/config.toml", *words]) == 0
    table = pq.read_table(runs / "data")
    names = ["d0", "d1", *MODELS[model][0]]
    (found,) = ask((step_directory(tmp_path), {name: table[name].to_pylist() for name in names}))
    p, y = np.array(found["label_probability"], np.float64), table["label"].to_numpy().astype(np.float64)
    evaluated = [json.loads(line) for line in Path(run, "evaluations.jsonl").read_text().splitlines()]
    expected = next(one["log_loss"] for one in evaluated if (one["split"], one["step"]) == ("test", STEPS))
    assert -(y * np.log(p) + (1 - y) * np.log1p(-p)).mean() == pytest.approx(expected, rel=1e-6)
