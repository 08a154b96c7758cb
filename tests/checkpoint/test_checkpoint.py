"""The checkpoint that a run is resumed from, and when resuming is refused."""

import json
import pickle
import shutil

import numpy as np
import pytest
import tomli_w
import torch
from command import run_trainer
from jobs import config, saved_tensors, write_rows

from trainer.checkpoint.restore import ColumnShards, write_rowwise_state
from trainer.checkpoint.store import entry_of


def trainer(folder, out, *flags):
    return run_trainer("train", folder / "config.toml", "--out", out, *flags)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of 6 steps with checkpoints after 2, 4 and 6."""
    folder = tmp_path_factory.mktemp("checkpoint")
    data = write_rows(folder / "data", [200, 56])
    settings = config(data, train__steps=6, checkpoint={"every_steps": 2})
    (folder / "config.toml").write_text(tomli_w.dumps(settings))
    done = trainer(folder, folder / "out")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished / "out", tmp_path / "out")
    return finished, tmp_path / "out"


def damage_bits(step):
    file = step / "__0_0.distcp"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def cut_short(step):
    file = step / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])


DAMAGES = {
    "a flipped bit": (damage_bits, "__0_0.distcp is damaged"),
    "a cut file": (cut_short, "__0_0.distcp is damaged"),
    "a missing file": (lambda step: (step / ".metadata").unlink(), ".metadata cannot be read"),
    "no manifest": (lambda step: (step / "manifest.json").unlink(), None),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(copy, damage):
    folder, out = copy
    harm, named = DAMAGES[damage]
    harm(out / "checkpoints/step-000000006")
    done = trainer(folder, out)
    assert done.returncode == 0, done.stderr
    assert "resumed after step 4" in done.stdout
    if named:
        assert f"checkpoint step-000000006 is skipped: {named}" in done.stdout
    whole, again = saved_tensors(folder / "out", 6), saved_tensors(out, 6)
    assert all(torch.equal(value, again[name]) for name, value in whole.items())


def test_the_manifest_lists_every_file(finished):
    for step in (2, 4, 6):
        folder = finished / f"out/checkpoints/step-{step:09d}"
        listed = json.loads((folder / "manifest.json").read_text())["files"]
        assert {*listed, "manifest.json"} == {path.name for path in folder.iterdir()}
        assert all((folder / name).stat().st_size == entry["bytes"] for name, entry in listed.items())


def test_a_finished_run_trains_no_further(copy):
    folder, out = copy
    before = (out / "metrics.jsonl").read_text()
    done = trainer(folder, out)
    assert done.returncode == 0, done.stderr
    assert (out / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--resume", "never"], "--resume is never, but '{out}' holds a checkpoint of step 6"),
        (["--train.seed", "1"], "--out is '{out}', which holds a run of another configuration: train.seed is 0 there"),
        (
            ["--train.steps", "5"],
            "--out is '{out}', where training took 6 steps already, more than the 5 of train.steps",
        ),
        (["--data.lanes", "16"], "data.lanes is 16, but the checkpoint"),
    ],
)
def test_a_run_that_would_not_be_the_same_is_refused(copy, flags, message):
    folder, out = copy
    before = (out / "config.toml").read_text()
    done = trainer(folder, out, *flags)
    assert done.returncode == 2
    assert message.format(out=out) in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (out / "config.toml").read_text() == before


def test_must_needs_a_checkpoint(finished, tmp_path):
    done = trainer(finished, tmp_path / "new", "--resume", "must")
    assert done.returncode == 2
    assert "--resume is must" in done.stderr


def test_changed_data_is_refused_until_accepted(finished, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(finished / "data", data)
    first = trainer(finished, tmp_path / "run", "--data.train", str(data), "--train.steps", "2")
    assert first.returncode == 0, first.stderr
    write_rows(data, [200, 40])
    flags = ["--data.train", str(data), "--train.steps", "4"]
    refused = trainer(finished, tmp_path / "run", *flags)
    assert refused.returncode == 2
    assert "part-01.parquet had" in refused.stderr
    assert "56 rows, now" in refused.stderr
    accepted = trainer(finished, tmp_path / "run", *flags, "--data.accept-changed", "True")
    assert accepted.returncode == 0, accepted.stderr
    assert "resumed after step 2" in accepted.stdout


@pytest.mark.parametrize(
    ("widths", "shards"), [((16,), 4), ((4, 4, 4, 4), 1), ((8, 8), 4), ((16, 4), 2), ((4, 4, 4), 3)]
)
def test_row_state_follows_other_column_shards(widths, shards):
    rows = np.random.default_rng(0).random((len(widths), 10)).astype(np.float32)
    value = torch.empty(shards * 10)
    write_rowwise_state(value, torch.tensor(rows).view(-1), ColumnShards(10, widths), 10)
    mean = np.average(rows.astype(np.float64), 0, widths).astype(np.float32)
    np.testing.assert_array_equal(value.view(shards, 10), np.tile(mean, (shards, 1)))


def forget(step, what):
    """Makes a checkpoint forget a tensor or a part of one, while its manifest is as good as before."""
    metadata = pickle.loads((step / ".metadata").read_bytes())
    name = next(name for name in metadata.state_dict_metadata if name.endswith("s0.weight"))
    if what == "a part":
        metadata.state_dict_metadata[name].chunks.pop()
    else:
        del metadata.state_dict_metadata[name]
    (step / ".metadata").write_bytes(pickle.dumps(metadata))
    manifest = json.loads((step / "manifest.json").read_text())
    manifest["files"][".metadata"] = entry_of((step / ".metadata").read_bytes())
    (step / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("a tensor", "lacks 1 tensor of this model, such as 'model.model.sparse_arch"),
        ("a part", "is incomplete: it fills 0 of the 1,600 values of 'model.model.sparse_arch"),
    ],
)
def test_tensors_that_the_checkpoint_cannot_fill_are_an_error(copy, what, expected):
    folder, out = copy
    forget(out / "checkpoints/step-000000006", what)
    done = trainer(folder, out, "--train.steps", "8")
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1
