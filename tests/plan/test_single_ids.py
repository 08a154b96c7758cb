"""Single ids, which ranks exchange at once, beside the same ids in lists, of which they first exchange the lengths."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from jobs import config, launch_rounds, losses

from trainer.batches.batch import SingleIds, of_block
from trainer.batches.rows import NO_ID

pytestmark = pytest.mark.more("the presets have single ids")

ROWS, STEPS = 640, 10
KINDS = {
    "whole": ["table_wise"] * 4,
    "cut by columns": ["table_wise", "column_wise", "table_wise", "column_wise"],
    "of all kinds": ["row_wise", "table_wise", "data_parallel", "column_wise"],
}


def job(data, out, kinds):
    tables = {f"s{number}": {"sharding_types": [kind]} for number, kind in enumerate(kinds)}
    changes = {
        "data__sparse": {f"s{number}": {"rows": 50} for number in range(4)},
        "data__validation": [str(data)],
        "train__steps": STEPS,
        "evaluate__every_steps": 5,
        "planner__tables": tables,
    }
    return {"config": config(data, **changes), "out": str(out), "count": True}


def evaluations(run):
    lines = map(json.loads, (run / "evaluations.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if "second" not in key} for line in lines]


def sent(run):
    return json.loads((run / "sent-0.json").read_text())


@pytest.mark.parametrize("block", [[[1, 2], [0, 5]], [[1, NO_ID], [NO_ID, NO_ID]], [[], []]], ids=str)
def test_ids_go_into_torchrecs_form_and_back(block):
    ids = torch.tensor(block, dtype=torch.int32)
    single = of_block(ids, ["a", "b"])
    assert torch.equal(single.block(), ids)
    assert single.lengths().tolist() == [int(one != NO_ID) for row in block for one in row]
    assert single.length_per_key() == [sum(one != NO_ID for one in row) for row in block]
    elsewhere = single.to(torch.device("meta"))
    assert isinstance(elsewhere, SingleIds)
    assert (elsewhere.values().shape, elsewhere.device().type) == (single.values().shape, "meta")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("single")
    random = np.random.default_rng(0)
    dense = {name: random.standard_normal(ROWS).astype(np.float32) for name in ("d0", "d1")}
    dense["label"] = random.integers(0, 2, ROWS).astype(np.float32)
    ids = {f"s{number}": random.integers(0, 50, ROWS).astype(np.int32) for number in range(4)}
    missing = {name: random.random(ROWS) < (0.3 if name in ("s1", "s2") else 0) for name in ids}
    single = {name: pa.array(values, mask=missing[name]) for name, values in ids.items()}
    lists = {
        name: pa.array([[] if one is None else [one] for one in found.to_pylist()], pa.list_(pa.int32()))
        for name, found in single.items()
    }
    for name, columns in (("single", single), ("lists", lists)):
        pq.write_table(pa.table({**dense, **columns}), folder / f"{name}.parquet", row_group_size=64)
    rounds = [
        (
            ranks,
            [
                job(folder / f"{data}.parquet", folder / f"{data}, {name}, {ranks}", kinds)
                for data in ("single", "lists")
                for name, kinds in KINDS.items()
            ],
        )
        for ranks in (2, 4)
    ]
    launch_rounds(rounds, folder)
    return folder


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", KINDS)
def test_single_ids_train_and_evaluate_as_the_same_ids_in_lists(runs, name, ranks):
    """On four ranks some have no table."""
    single, lists = (runs / f"{data}, {name}, {ranks}" for data in ("single", "lists"))
    assert losses(single) == losses(lists)
    assert evaluations(single) == evaluations(lists) != []


@pytest.mark.parametrize(
    ("name", "training", "evaluation"), [("whole", 2, 2), ("cut by columns", 3, 4), ("of all kinds", 2, 4)]
)
def test_ranks_exchange_single_ids_at_once(runs, name, training, evaluation):
    """Of lists, ranks exchange how many ids come, once for all tables in training, then lengths, then ids.

    The first batch goes as lists do, since TorchRec makes its exchanges by it.
    """
    single, lists = (len(sent(runs / f"{data}, {name}, 2")["ids"]) for data in ("single", "lists"))
    assert lists - single == (STEPS - 1) * training + 2 * STEPS * evaluation
