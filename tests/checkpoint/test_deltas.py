"""Checkpoints that hold only the rows that changed: read, resumed from and deleted like whole ones."""

import shutil

import pytest
import torch
from command import run_trainer
from jobs import config, launch, losses, write_rows
from small_disk import fill, mounted_disk
from trainer_process import deltas_in

from torchx_recsys.apps.runs.saved_tensors import SavedRows, read_tensors
from trainer.checkpoint.deltas import packed, unpacked
from trainer.checkpoint.saver import Saver, Staging
from trainer.checkpoint.store import Checkpoints
from trainer.config.train import CheckpointConfig
from trainer.core.distributed import current_context, process_group
from trainer.core.run_directory import RunDirectory

STEPS, FULL_EVERY = 8, 4
CHAINS = {2: 1, 3: 2, 4: 3, 6: 5, 7: 6, 8: 7}  # each delta's predecessor
ROWS = 4000  # of a table, most of which no batch looks up


def tree_of(data, **changes):
    """Returns a configuration with all that a delta has by row: weights, one state value per row, averages, ids."""
    settings = {
        "optimizer__ema": {"decay": 0.9, "tables": True},
        "optimizer__sparse": {"name": "rowwise_adagrad", "learning_rate": 0.1},
        "optimizer__dense": {"name": "adam", "learning_rate": 0.01},
        "data__global_batch_size": 8,
        "train__steps": STEPS,
        "checkpoint": {"every_steps": 1, "full_every": FULL_EVERY, "keep": {"newest": STEPS}},
    }
    tree = config(data, **settings | changes)
    tree["data"]["sparse"] = {name: {"rows": ROWS} for name in tree["data"]["sparse"]}
    tree["data"]["sparse"]["s1"]["ids"] = "managed"
    return tree


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("data"), [130])


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """The same run with whole checkpoints and with deltas, on two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    trees = {"whole": tree_of(data, checkpoint__full_every=1), "deltas": tree_of(data)}
    launch([{"config": tree, "out": str(folder / name)} for name, tree in trees.items()], 2, folder)
    return folder


@pytest.fixture
def copy(runs, tmp_path):
    """A copy of the run with deltas."""
    shutil.copytree(runs / "deltas", tmp_path / "out")
    return tmp_path / "out"


def of(run):
    return Checkpoints(RunDirectory(str(run)))


def files(run, step):
    return run / f"checkpoints/step-{step:09d}"


def assert_equal(run, other, steps):
    for step in steps:
        found, expected = read_tensors(of(run).url(step)), read_tensors(of(other).url(step))
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), (step, name)


def resume(run, tree, ranks):
    launch([{"config": tree, "out": str(run), "resume": "must"}], ranks, run.parent)


def test_each_delta_stands_for_the_whole_state(runs):
    assert deltas_in(of(runs / "whole")) == {}
    assert deltas_in(of(runs / "deltas")) == CHAINS
    assert losses(runs / "deltas") == losses(runs / "whole")
    assert_equal(runs / "deltas", runs / "whole", range(1, STEPS + 1))


def test_a_delta_is_small(runs):
    chain = of(runs / "deltas").chain(4)
    assert (chain.step, chain.deltas) == (4, 3)
    assert chain.delta_bytes < 0.3 * chain.whole_bytes


def test_any_rows_of_a_delta(runs):
    whole, saved = read_tensors(of(runs / "whole").url(4)), SavedRows(of(runs / "deltas").url(4))
    assert saved.entries.keys() == whole.keys()
    for name, tensor in whole.items():
        if tensor.dim():
            for start, stop in ((0, len(tensor)), (0, 1), (len(tensor) // 3, len(tensor) // 2)):
                assert torch.equal(saved.rows(name, start, stop), tensor[start:stop]), (name, start, stop)


@pytest.mark.more("test_segments.py resumes")
@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_job_goes_on_with_the_chain_that_it_resumes_from(runs, copy, data, step):
    for later in range(step + 1, STEPS + 1):
        shutil.rmtree(files(copy, later))
    resume(copy, tree_of(data), 2)
    assert deltas_in(of(copy)) == CHAINS
    assert losses(copy) == losses(runs / "whole")
    assert_equal(copy, runs / "whole", [step + 1, STEPS])


def test_another_plan_begins_with_a_whole_checkpoint(copy, data):
    for later in range(4, STEPS + 1):
        shutil.rmtree(files(copy, later))
    resume(copy, tree_of(data, planner__sharding_types=["column_wise"], planner__min_columns=8), 2)
    assert deltas_in(of(copy)) == {2: 1, 3: 2, 5: 4, 6: 5, 7: 6}


def test_a_damaged_link_breaks_the_chain_after_it(copy):
    file = next(files(copy, 6).glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-1])
    assert of(copy).damage(5) is None
    assert of(copy).damage(6).startswith(f"{file.name} is damaged: it has ")
    reason = f"it is a delta on step-000000007: it is a delta on step-000000006: {file.name} is damaged: it has "
    assert of(copy).damage(8).startswith(reason)
    assert of(copy).newest().step == 5
    said = run_trainer("checkpoints", "--out", copy, "--verify", "True")
    assert said.returncode == 1
    states = [line.split() for line in said.stdout.splitlines()[2 : 2 + STEPS]]
    assert ["ok" in state for state in states] == [True] * 5 + [False] * 3


def test_a_link_that_is_missing_or_replaced(copy):
    manifest = files(copy, 2) / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    assert of(copy).damage(2) is None
    assert of(copy).damage(4) == (
        "it is a delta on step-000000003: it is a delta on step-000000002, which was replaced by another"
    )
    shutil.rmtree(files(copy, 2))
    assert of(copy).damage(3) == "it is a delta on step-000000002, which is missing"
    said = run_trainer("checkpoints", "--out", copy, "--step", "3", "--convert", copy.parent / "plain.pt")
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert "it is a delta on step-000000002, which is missing" in said.stderr


def test_what_a_kept_delta_builds_on_is_kept(data, tmp_path):
    tree = tree_of(data, checkpoint__keep={"newest": 1, "every_steps": 3})
    launch([{"config": tree, "out": str(tmp_path / "out")}], 1, tmp_path)
    assert of(tmp_path / "out").steps() == [1, 2, 3, 5, 6, 7, 8]
    said = run_trainer("checkpoints", "--out", tmp_path / "out").stdout
    header, _, *lines = said.partition("\n\n")[0].splitlines()
    assert "builds on" in header
    kept = [line.rpartition("  ")[2].strip() for line in lines]
    assert kept == [
        "step 2 builds on it",
        "step 3 builds on it",
        "every 3 steps",
        "step 6 builds on it",
        "every 3 steps, step 7 builds on it",
        "step 8 builds on it",
        "newest 1",
    ]


def test_deltas_that_are_not_small_end_their_chain(data, tmp_path):
    tree = tree_of(data, data__global_batch_size=128, checkpoint__full_every=100)
    tree["data"]["sparse"] = {name: {"rows": 110} for name in tree["data"]["sparse"]}
    launch([{"config": tree, "out": str(tmp_path / "out")}], 1, tmp_path)
    assert deltas_in(of(tmp_path / "out")) == {2: 1, 4: 3, 6: 5, 8: 7}


@pytest.fixture
def small_disk(tmp_path):
    """A mounted file system of 1 MiB."""
    with mounted_disk(tmp_path, 1) as disk:
        yield disk


def test_a_delta_that_is_not_saved_is_followed_by_a_whole_checkpoint(small_disk):
    lines, checkpoints = [], of(small_disk / "out")
    tensors = {"table.t.momentum1": torch.zeros(20_000), "dense.bias.step": torch.zeros(())}
    with process_group():
        settings = CheckpointConfig(full_every=10), current_context(), 0, lines.append, list, lambda: None
        saver = Saver(checkpoints, *settings, Staging())
        for step in range(1, 6):
            tensors["table.t.momentum1"][step * 1000] = step
            if step == 3:
                fill(small_disk)
            saver.save(step, tensors, {}, {})
            saver.wait()
            (small_disk / "filler").unlink(missing_ok=True)
        saver.close()
    assert ["NOT SAVED" in line for line in lines] == [False, False, True, False, False]
    assert deltas_in(checkpoints) == {2: 1, 5: 4}
    found = read_tensors(checkpoints.url(5))["table.t.momentum1"]
    assert found.nonzero().view(-1).tolist() == [1000, 2000, 3000, 4000, 5000]


def test_bits_count_and_not_values():
    """A zero of the other sign and another NaN are changes; the same NaN is none."""
    staging, value = Staging(), torch.tensor([[0.0, 1.0], [float("nan"), 1.0], [2.0, 2.0], [3.0, 3.0]])
    staging.copy({"table.t.s": value})
    value[0, 0] = -0.0
    value[2, 1] = float("nan")
    found = staging.changes({"table.t.s": value})
    assert unpacked(found["delta.table.t.s@0,0.rows"]).tolist() == [0, 2]
    assert found["delta.table.t.s@0,0.values"][0].signbit().tolist() == [True, False]


@pytest.mark.parametrize("rows", [[], [0], [63, 64], [5, 999], [*range(0, 1000, 7)], [*range(1000)]])
def test_numbers_of_rows_take_few_bytes(rows):
    found = packed(torch.tensor(rows, dtype=torch.int64), 1000)
    assert unpacked(found).tolist() == rows
    assert found.nbytes <= min(4 * len(rows), 125)


@pytest.mark.parametrize(
    ("columns", "dtype"), [(16, torch.float32), (3, torch.float32), (5, torch.float16), (0, torch.int64)]
)
def test_changed_rows_are_those_of_a_plain_comparison(columns, dtype):
    """Also of a view that does not begin at eight bytes."""
    generator = torch.Generator().manual_seed(0)
    shape = (3000, columns) if columns else (3000,)
    value = (torch.randn(3000 * max(1, columns) + 1, generator=generator) * 9).to(dtype)[1:].view(shape)
    staging, before = Staging(), value.clone()
    staging.copy({"table.t.s": value})
    value[::9] += 1
    found = staging.changes({"table.t.s": value})
    rows = (value != before).view(3000, -1).any(1).nonzero().view(-1)
    assert unpacked(found["delta.table.t.s@0,0.rows"]).tolist() == rows.tolist()
    assert found["delta.table.t.s@0,0.values"].equal(value[rows])
    assert not staging.changes({"table.t.s": value})
