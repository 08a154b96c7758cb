"""Rows of a checkpoint read in ranges are those of torch's own reader, under every plan."""

import numpy as np
import pytest
import torch
from jobs import config, launch, saved_tensors, write_rows

from torchx_recsys.apps.runs.saved_tensors import SavedRows
from trainer.core.errors import InputError

STEPS = 2
PLANS = ("table_wise", "row_wise", "column_wise", "data_parallel")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run for each plan, with averages and one value per row of a table."""
    folder = tmp_path_factory.mktemp("runs")
    data = write_rows(folder / "data", [130])
    changes = {"optimizer__ema": {"decay": 0.9, "tables": True}, "train__steps": STEPS}
    changes["optimizer__sparse"] = {"name": "rowwise_adagrad", "learning_rate": 0.1}
    trees = {plan: config(data, planner__sharding_types=[plan], **changes) for plan in PLANS}
    launch([{"config": tree, "out": str(folder / plan)} for plan, tree in trees.items()], 2, folder)
    return folder


def checkpoint_of(run):
    return str(run / "checkpoints" / f"step-{STEPS:09d}")


@pytest.mark.parametrize("plan", PLANS)
def test_any_rows_of_any_tensor(runs, plan):
    whole = saved_tensors(runs / plan, STEPS)
    saved = SavedRows(checkpoint_of(runs / plan))
    assert saved.entries.keys() == whole.keys()
    sharded = sum(len(entry.chunks) > 1 for entry in saved.entries.values())
    assert (sharded > 0) == (plan in ("row_wise", "column_wise"))
    random = np.random.default_rng(0)
    for name, tensor in whole.items():
        if tensor.dim():
            ends = [(0, len(tensor)), (0, 1), (len(tensor) - 1, len(tensor))]
            ends += [sorted(random.integers(0, len(tensor) + 1, 2)) for _ in range(5)]
            for start, stop in ends:
                assert torch.equal(saved.rows(name, int(start), int(stop)), tensor[start:stop]), (name, start, stop)


def test_a_file_that_ends_early(runs):
    name = "model.model.sparse_arch.embedding_bag_collection.embedding_bags.s0.weight"
    saved = SavedRows(checkpoint_of(runs / "table_wise"))
    rows = saved.entries[name].size[0]
    saved.rows(name, 0, 1)
    for file in (runs / "table_wise").rglob("*.distcp"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 100])
    with pytest.raises(InputError, match=f"is incomplete: it lacks values of '{name}'"):
        saved.rows(name, 0, rows)
