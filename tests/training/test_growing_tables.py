"""A run whose tables get more rows, and whose vocabulary gets more ids, goes on with what it has learned."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import run_trainer, write_config
from jobs import config, launch, write_rows

from torchx_recsys.apps.runs.saved_tensors import read_tensors
from torchx_recsys.apps.vocabulary.vocabulary import vocabulary
from trainer.models.embeddings import table_of_weight

pytestmark = pytest.mark.more("test_finetune.py has more ids, too")

STEPS, ROWS, MORE = 4, 110, 300
KINDS = ("row_wise", "column_wise", "data_parallel")


def tree_of(folder, kind="row_wise", steps=STEPS, rows=ROWS, **changes):
    planner = {"mode": "data_parallel"} if kind == "data_parallel" else {"sharding_types": [kind], "min_columns": 8}
    settings = {
        "planner": planner,
        "optimizer__sparse": {"name": "rowwise_adagrad", "learning_rate": 0.1, "initial_accumulator": 0.1},
        "optimizer__ema": {"decay": 0.9, "tables": True},
        "checkpoint": {"every_steps": 2, "full_every": 3, "grow_tables": True},
        "train__steps": steps,
    }
    tree = config(folder / "data", **settings | changes)
    tree["data"]["sparse"] |= {"s0": {"rows": rows}, "s1": {"rows": rows, "ids": "managed"}}
    return tree


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """Runs of 4 steps whose first two tables then have more rows, under each plan on 2 ranks, and go on to 5."""
    folder = tmp_path_factory.mktemp("grown")
    write_rows(folder / "data", [200])
    small = [{"config": tree_of(folder, kind), "out": str(folder / kind)} for kind in KINDS]
    large = [
        {"config": tree_of(folder, kind, steps, MORE), "out": str(folder / kind), "resume": "must"}
        for kind in KINDS
        for steps in (STEPS, STEPS + 1)
    ]
    launch([*small, *large], 2, folder)
    return folder


@pytest.mark.few(1, "one stands for all")
@pytest.mark.parametrize("kind", KINDS)
def test_old_rows_stay_and_new_ones_start_as_in_a_new_run(grown, kind):
    fresh = [{"config": tree_of(grown, kind, 1, MORE), "out": str(grown / f"fresh-{kind}")}]
    launch(fresh, 2, grown)
    before, after, new = (
        read_tensors(str(grown / f"{out}/checkpoints/step-{step:09d}"))
        for out, step in ((kind, STEPS), (kind, STEPS + 1), (f"fresh-{kind}", 1))
    )
    assert after.keys() == before.keys()
    for name in ("s0", "s1"):
        (weight,) = (one for one in before if table_of_weight(one) == name and one.startswith("model."))
        old, rows = before[weight], after[weight]
        assert (len(old), len(rows)) == (ROWS, MORE)
        # A step looks up at most 64 rows of the old ones.
        assert (rows[:ROWS] == old).all(1).sum() >= ROWS - 64
        assert not torch.equal(rows[:ROWS], old)
        unseen = after[f"table.{name}.momentum1"].view(-1, MORE)[:, ROWS:]
        assert (unseen == torch.tensor(0.1)).float().mean() > 0.7
        assert torch.equal(rows[250:], new[weight][250:])
        assert torch.equal(after[f"ema.{weight.removeprefix('model.')}"][250:], rows[250:])
    assert torch.equal(
        after["managed.s1.ids"][: before["managed.s1.ids"].ne(-1).sum()][1:5], before["managed.s1.ids"][1:5]
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grow_tables": False}, "data.sparse.s0.rows is 110 there and 300 here, and may not change when a run is "
         "resumed; set it back or let the table grow with --checkpoint.grow-tables True"),
        ({"rows": 100}, "data.sparse.s0.rows is 110 there and 100 here, and may not change when a run is resumed; set "
         "it back or choose another --out"),
    ],
)  # fmt: skip
def test_wrong_growth(tmp_path, changes, message):
    write_rows(tmp_path / "data", [200])
    launch([{"config": tree_of(tmp_path, steps=1), "out": str(tmp_path / "out")}], 1, tmp_path)
    tree = tree_of(tmp_path, rows=changes.get("rows", MORE))
    tree["data"]["sparse"]["s1"]["rows"] = ROWS
    tree["checkpoint"]["grow_tables"] = changes.get("grow_tables", True)
    done = run_trainer("train", write_config(tmp_path / "config.toml", tree), "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_hashed_ids_have_no_rows_to_keep(tmp_path):
    write_rows(tmp_path / "data", [200])
    for rows, code in ((110, 0), (300, 2)):
        tree = tree_of(tmp_path, steps=1)
        tree["data"]["sparse"]["s0"] = {"rows": rows, "ids": "hash"}
        done = run_trainer("train", write_config(tmp_path / "config.toml", tree), "--out", tmp_path / "out")
        assert done.returncode == code, done.stderr
    assert "data.sparse.s0.rows is 110 there and 300 here, and may not change" in done.stderr


def test_a_vocabulary_gets_more_ids(tmp_path):
    """The rows of the earlier ids stay; another order is refused."""
    for name, ids in (("old", range(40)), ("new", range(100)), ("other", range(50, 100))):
        pq.write_table(pa.table({"s0": [*ids]}), tmp_path / f"{name}.parquet")
    old, new, other = (str(tmp_path / name) for name in ("v-old", "v-new", "v-other"))
    vocabulary((str(tmp_path / "old.parquet"),), ("s0",), old)
    vocabulary((str(tmp_path / "new.parquet"),), ("s0",), new, extends=old)
    vocabulary((str(tmp_path / "other.parquet"),), ("s0",), other)
    write_rows(tmp_path / "data", [200])

    def train(folder, steps, code=0):
        tree = tree_of(tmp_path, steps=steps)
        tree["data"]["sparse"]["s0"] = {"rows": 110, "ids": "vocabulary", "vocabulary": f"{folder}/s0.parquet"}
        done = run_trainer("train", write_config(tmp_path / "config.toml", tree), "--out", tmp_path / "out")
        assert done.returncode == code, done.stderr
        return done.stderr

    train(old, 2)
    assert "whose ids have other rows than in the checkpoint at" in train(other, 3, code=2)
    train(new, 3)
    assert "or one that extends it" in train(old, 4, code=2)  # rows of the later ids were trained on
