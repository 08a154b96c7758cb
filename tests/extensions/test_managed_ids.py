"""Managed ids in training: the same on any number of ranks, exactly resumed, and rows as fresh as at the start."""

import json
import shutil

import numpy as np
import pytest
import torch
from command import write_config
from jobs import launch_rounds, losses, saved_tensors
from managed import KINDS, rows_of_ids, settings, write_ids

from trainer.__main__ import main as trainer
from trainer.config.data import DataConfig
from trainer.core.distributed import DistributedContext
from trainer.extensions.managed_ids.managed_ids import ManagedIds
from trainer.models.table_init import initial_rows
from trainer.rules.managed import FREE

STEPS, HALF = 12, 5


def resumable(data, kind="row_wise", steps=STEPS, **changes):
    return settings(
        data,
        kind,
        data__validation=[str(data)],
        checkpoint__every_steps=HALF,
        evaluate__every_steps=4,
        train__steps=steps,
        **changes,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_ids(tmp_path_factory.mktemp("managed") / "data")


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory, request):
    """Runs by kind and ranks, and the same after a resume of the run on 4 ranks, by that number with an r."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = [*KINDS] if request.config.getoption("all") else ["row_wise"]

    def jobs(name, steps, **options):
        return [
            {"config": resumable(data, kind, steps), "out": str(folder / f"{kind}-{name}")} | options for kind in kinds
        ]

    rounds = [(4, jobs("4", STEPS) + jobs("half", HALF)), (2, jobs("2", STEPS)), (1, jobs("1", STEPS))]
    launch_rounds(rounds, folder)
    for kind in kinds:
        for ranks in (4, 2, 1):
            shutil.copytree(folder / f"{kind}-half", folder / f"{kind}-{ranks}r")
    launch_rounds([(ranks, jobs(f"{ranks}r", STEPS, resume="must")) for ranks in (4, 2, 1)], folder)
    return {kind: {name: folder / f"{kind}-{name}" for name in ("4", "2", "1", "4r", "2r", "1r")} for kind in kinds}


def evaluations(out):
    """Returns the evaluations that do not come from the end of the first half."""
    found = [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]
    return [one for one in found if one["step"] != HALF]


def test_any_number_of_ranks_and_any_resume_gives_the_same(runs):
    for found in runs.values():
        expected, tensors = losses(found["4"]), saved_tensors(found["4"], STEPS)
        managed = rows_of_ids(tensors)
        assert len(managed) == 8
        for out in found.values():
            assert losses(out) == pytest.approx(expected, abs=1e-5)
            assert [one["auc"] for one in evaluations(out)] == pytest.approx(
                [one["auc"] for one in evaluations(found["4"])], abs=1e-3
            )
            other = saved_tensors(out, STEPS)
            assert all(torch.equal(other[name], value) for name, value in managed.items())


def test_a_resume_on_as_many_ranks_is_exact(runs):
    for found in runs.values():
        assert losses(found["4r"]) == losses(found["4"])
        assert evaluations(found["4r"]) == evaluations(found["4"])
        before, after = saved_tensors(found["4"], STEPS), saved_tensors(found["4r"], STEPS)
        assert before.keys() == after.keys()
        assert [name for name in before if not torch.equal(before[name], after[name])] == []


def test_a_resumed_run_keeps_its_rule(data, tmp_path):
    def rule(steps, evict):
        tree = resumable(data, steps=steps)
        for name in ("s0", "s1", "s2"):
            own = {"ids": "managed", "rows": 80}  # more than a batch needs, so that some ids leave and others stay
            tree["data"]["sparse"][name] = own | ({"evict": evict} if evict else {})
        return tree

    recent, unset, used = "least_recent", None, "least_used"
    rounds = [("recent", STEPS, recent), ("resumed", HALF, recent), ("resumed", STEPS, unset)]
    rounds += [("used", STEPS, used), ("unset", STEPS, unset), ("changed", HALF, recent), ("changed", STEPS, used)]
    jobs = [{"config": rule(steps, evict), "out": str(tmp_path / name)} for name, steps, evict in rounds]
    launch_rounds([(1, jobs)], tmp_path)
    names = ("recent", "resumed", "used", "unset", "changed")
    found = {name: rows_of_ids(saved_tensors(tmp_path / name, STEPS)) for name in names}
    alike = {(one, two) for one in names for two in names if equal(found[one], found[two])}
    assert alike - {(name, name) for name in names} == {
        *(("recent", "resumed"), ("resumed", "recent")),
        *(("used", "unset"), ("unset", "used")),
    }


def equal(tensors, others):
    return all(torch.equal(others[name], value) for name, value in tensors.items())


@pytest.fixture
def managed():
    features = {"a": {"ids": "managed", "rows": 9}, "b": {"ids": "managed", "rows": 9, "evict": "least_used"}}
    return ManagedIds(
        DataConfig.model_validate({"sparse": features}), DistributedContext(0, 1, 0, 1, torch.device("cpu"))
    )


def test_a_checkpoint_without_a_rule_is_of_the_earlier_default(managed):
    assert managed.rules()["evict"] == {"a": "least_used", "b": "least_used"}
    managed.restoring({})
    assert managed.rules() == {
        "evict": {"a": "least_recent", "b": "least_used"},
        "blocks": {"a": [1, 9], "b": [1, 9]},
    }


def test_no_row_that_a_checkpoint_lacks_keeps_its_id(managed):
    managed.tensors()["managed.a.ids"].fill_(3)
    assert (managed.restoring({"blocks": {"a": [1, 5]}})["managed.a.ids"] == FREE).all()
    assert managed.rules()["blocks"] == {"a": [1, 5, 9], "b": [1, 9]}


def test_what_is_reported(runs):
    last = json.loads((runs["row_wise"]["1"] / "metrics.jsonl").read_text().splitlines()[-1])
    tensors = saved_tensors(runs["row_wise"]["1"], STEPS)
    for table, rows in (("ids", 60), ("s2", 20)):
        used, evicted, overflowed = tensors[f"managed.{table}.totals"].tolist()
        found = [last[f"ids/{table}/{name}"] for name in ("used", "free", "evicted", "overflowed")]
        assert found == [used, rows - 1 - used, evicted, overflowed]
        assert (tensors[f"managed.{table}.ids"] >= 0).sum() == used
        assert evicted > 0
    assert tensors["managed.s2.totals"][2] > 0


def test_a_row_of_a_new_id_is_as_fresh_as_at_the_start(data, tmp_path):
    # At a rate of 0 a row has its initial values, or those of the step that gave it to another id.
    still = resumable(data, steps=2, checkpoint__asynchronous=False)
    still["checkpoint"]["every_steps"] = 1
    still["optimizer"]["sparse"]["learning_rate"] = 0.0
    launch_rounds([(2, [{"config": still, "out": str(tmp_path / "out")}])], tmp_path)
    first, second = (saved_tensors(tmp_path / "out", step) for step in (1, 2))
    name = next(name for name in first if name.endswith("embedding_bags.ids.weight") and name.startswith("model."))
    had, has = first["managed.ids.ids"], second["managed.ids.ids"]
    taken = ((had != has) & (had >= 0)).nonzero()[:, 0]
    assert len(taken)
    assert len(taken) == second["managed.ids.totals"][1]
    columns, size = torch.arange(16), first[name].shape
    assert torch.equal(first[name], initial_rows(torch.arange(60), columns, size, "ids", 0))
    assert torch.equal(second[name][taken], initial_rows(taken, columns, size, "ids", 0, step=2))
    assert torch.equal(second[f"ema.{name.removeprefix('model.')}"][taken], second[name][taken])
    rest = np.setdiff1d(np.arange(60), taken.numpy())
    assert torch.equal(second[name][rest], first[name][rest])


def test_fine_tuning_takes_the_rows_with_the_table(runs, data, tmp_path, capfd):
    source = runs["row_wise"]["1"]
    tree = resumable(
        data, steps=1, data__global_batch_size=16, finetune={"checkpoint": str(source), "optimizer_state": False}
    )
    launch_rounds([(1, [{"config": tree, "out": str(tmp_path / "tuned")}])], tmp_path)
    before, after = saved_tensors(source, STEPS), saved_tensors(tmp_path / "tuned", 1)
    for table in ("ids", "s2"):
        assert (after[f"managed.{table}.last_used"] <= 1).all()
        idle = after[f"managed.{table}.last_used"] == 0
        idle[0] = False
        assert idle.any()
        assert torch.equal(after[f"managed.{table}.ids"][idle], before[f"managed.{table}.ids"][idle])
        weight = f"model.model.sparse_arch.embedding_bag_collection.embedding_bags.{table}.weight"
        assert torch.equal(after[weight][idle], before[weight][idle])
    tree["data"]["sparse"]["s2"] = {"ids": "hash", "rows": 20}
    file = write_config(tmp_path / "config.toml", tree)
    assert trainer(["train", str(file), "--out", str(tmp_path / "other")]) == 2
    assert "table 's2' has other ids, and 's2' of the checkpoint has managed ones" in capfd.readouterr().err


WRONG = [
    ({"ids": "managed", "rows": 1}, "data.sparse.s0.rows is 1; managed ids need one for unseen ids and one more"),
    ({"rows": 100, "evict": "least_used"}, "data.sparse.s0.evict is 'least_used', but data.sparse.s0.ids is 'error'"),
    ({"ids": "managed", "rows": 101, "table": "s1"}, "data.sparse.s1.ids is error, but data.sparse.s0.ids is managed"),
    ({"ids": "managed", "rows": 9, "evict": "oldest"}, "data.sparse.s0.evict is 'oldest'"),
]


@pytest.mark.parametrize(("feature", "message"), WRONG)
def test_wrong_settings(refusal, feature, message):
    assert message in refusal({"data__sparse__s0": feature})
