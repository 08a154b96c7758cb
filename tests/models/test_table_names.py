"""Tables whose names TorchRec's modules cannot hold: dots, and attributes of modules."""

import json
import re

import pyarrow.parquet as pq
import pytest
import torch
from jobs import config, launch, losses, saved_tensors

NAMES = {"s0": "user.id", "s1": "user.item.id", "s2": "type"}
TABLES = "model.model.sparse_arch.embedding_bag_collection.embedding_bags"


@pytest.fixture(scope="module")
def named_rows(rows, tmp_path_factory):
    """The rows of `rows`, three columns of ids under other names."""
    folder = tmp_path_factory.mktemp("named")
    for file in rows.glob("*.parquet"):
        table = pq.read_table(file)
        names = [NAMES.get(name, name) for name in table.column_names]
        pq.write_table(table.rename_columns(names), folder / file.name, row_group_size=64)
    return folder


def settings(data, sharding="row_wise", steps=4, **changes):
    """A configuration with the new names; table user.id is data_parallel."""
    tree = config(
        data,
        train__steps=steps,
        optimizer__sparse={"name": "rowwise_adagrad", "learning_rate": 0.1},
        planner__sharding_types=[sharding],
        planner__tables={"user.id": {"sharding_types": ["data_parallel"]}},
        **changes,
    )
    tree["data"]["sparse"] = {NAMES.get(name, name): feature for name, feature in tree["data"]["sparse"].items()}
    return tree


@pytest.fixture(scope="module")
def runs(named_rows, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    begun = settings(named_rows, checkpoint__every_steps=2)
    jobs = [
        {"config": settings(named_rows, steps=2), "out": str(folder / "resumed")},
        {"config": settings(named_rows), "out": str(folder / "resumed")},
        {"config": begun, "out": str(folder / "whole")},
        {"config": settings(named_rows, planner__plan=str(folder / "whole/plan.json")), "out": str(folder / "planned")},
        {
            "config": settings(named_rows, "table_wise", 1, finetune={"checkpoint": str(folder / "whole")}),
            "out": str(folder / "finetuned"),
        },
    ]
    (folder / "output.txt").write_text(launch(jobs, 2, folder))
    return folder


def test_resumes_as_if_undisturbed(runs):
    assert losses(runs / "resumed") == losses(runs / "whole")
    resumed, whole = (saved_tensors(runs / name, 4) for name in ("resumed", "whole"))
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def test_its_own_plan_is_loaded_again(runs):
    assert losses(runs / "planned") == losses(runs / "whole")


def test_fine_tunes(runs):
    outcomes = json.loads((runs / "finetuned/run.json").read_text())["finetune"]
    assert set(NAMES.values()) < set(outcomes["loaded"])
    assert not outcomes["missing"] + outcomes["unexpected"] + outcomes["new"]


def test_users_see_the_names_of_their_columns(runs):
    output = (runs / "output.txt").read_text()
    assert all(f"\n{name} " in output for name in NAMES.values())
    assert not re.search("%[0-9A-F]{2}", output)
    plan = json.loads((runs / "whole/plan.json").read_text())
    (tables,) = plan["modules"].values()
    assert tables.keys() == {"user.id", "user.item.id", "type", "s3", "s4", "s5"}
    assert (tables["user.id"]["sharding_type"], tables["type"]["sharding_type"]) == ("data_parallel", "row_wise")


def test_other_tables_keep_their_names_in_checkpoints(runs):
    names = saved_tensors(runs / "whole", 4).keys()
    assert {f"{TABLES}.s3.weight", "table.s3.momentum1"} < names
    assert {f"{TABLES}.user%2Eid.weight", "table.user%2Eid.momentum1", f"{TABLES}.%type.weight"} < names
