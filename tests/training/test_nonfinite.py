"""A step whose loss or gradients are not finite is skipped without a bit changed, or ends the job with a reason."""

import json
import pickle
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command import run_trainer, write_config
from jobs import config, launch_rounds, losses, numbers_of_ranks, saved_tensors, write_rows

from trainer.__main__ import main as trainer
from trainer.checkpoint.store import entry_of

BAD_ROW = 200  # of 256. Unshuffled, in 8 lanes of 32 rows and 4 steps an epoch, in the second step, at position 48.
STEP = "checkpoints/step-{:09d}"
BAD_STEPS, POSITION = {2, 6}, 48
STEPS = 8
CHANGES = {
    "fp32": {},
    "parts": {"train__micro_batches": 4},
    "buffers": {"model": {"name": "custom:Normalized", "embedding_dim": 16}},
    "fp16": {"train__precision": "fp16", "train__loss_scale": {"initial": 1024.0, "growth_interval": 4}},
}
# Overflows in steps 1 to 3, so that step 4 is the first that updates anything; all of the first two checkpoints are
# from before.
LATE = {
    "train__precision": "fp16",
    "train__loss_scale": {"initial": 2.0**46, "backoff_factor": 2.0**-10},
    "optimizer__dense__parts": {"head": {"weights": ["*over*"], "weight_decay": 0.1}},
    "checkpoint__full_every": 3,
}
SAVED_BEFORE = 2
MATRIX = "ranks", numbers_of_ranks


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Rows of which one has the label that `custom:infinite_for_half` makes infinite."""
    folder = tmp_path_factory.mktemp("planted")
    (file,) = write_rows(folder / "bad", [256]).glob("*.parquet")
    table = pq.read_table(file)
    label = table["label"].to_numpy().copy()
    label[BAD_ROW] = 0.5
    column = table.column_names.index("label")
    pq.write_table(table.set_column(column, "label", pa.array(label)), file, row_group_size=64)
    return folder / "bad"


def settings(data, steps=STEPS, **changes):
    tree = config(
        data,
        data__shuffle=False,
        train__steps=steps,
        optimizer__sparse={"name": "rowwise_adagrad", "learning_rate": 0.1},
        optimizer__dense={"name": "adamw", "learning_rate": 0.01},
        **{"checkpoint__every_steps": 1, "checkpoint__keep": {"newest": STEPS}, "train__nonfinite": "skip"} | changes,
    )
    tree["model"]["loss"] = "custom:infinite_for_half"
    return tree


@pytest.fixture(scope="module")
def runs(matrix, data, tmp_path_factory):
    """Every kind of step on one rank and on several, and one that is resumed between the two bad steps."""
    folder = tmp_path_factory.mktemp("nonfinite")
    rounds = [
        (
            ranks,
            [
                {"config": settings(data, **changes), "out": str(folder / f"{kind}-{ranks}")}
                for kind, changes in CHANGES.items()
            ],
        )
        for ranks in matrix
    ]
    rounds[1][1].extend(
        {"config": settings(data, steps, **CHANGES["fp16"]), "out": str(folder / "resumed")} for steps in (5, STEPS)
    )
    late = {"late": [STEPS], "late-resumed": [SAVED_BEFORE, STEPS], "late-moved": [STEPS]}
    rounds[0][1].append({"config": settings(data, SAVED_BEFORE, **LATE), "out": str(folder / "late-moved")})
    rounds[1][1].extend(
        {"config": settings(data, steps, **LATE), "out": str(folder / out)} for out in late for steps in late[out]
    )
    tuned = {"finetune__checkpoint": str(folder / f"late-resumed/{STEP.format(SAVED_BEFORE)}")}
    tuned |= LATE | {"finetune__optimizer_state": True}
    rounds[1][1].append({"config": settings(data, STEPS, **tuned), "out": str(folder / "late-tuned")})
    launch_rounds(rounds, folder)
    return folder


def states(out):
    """Returns what the checkpoint of every step says of the steps up to it."""
    files = sorted(out.glob("checkpoints/*/state.json"))
    return [json.loads(file.read_text())["step_state"] for file in files]


@pytest.mark.parametrize("kind", CHANGES)
def test_no_bit_changes_in_a_skipped_step(runs, kind, ranks):
    out = runs / f"{kind}-{ranks}"
    assert [state["skipped"] for state in states(out)] == [0, 1, 1, 1, 1, 2, 2, 2]
    for step in range(2, STEPS + 1):
        before, after = saved_tensors(out, step - 1), saved_tensors(out, step)
        unchanged = {name for name, value in before.items() if torch.equal(after[name], value)}
        assert (unchanged == before.keys()) == (step in BAD_STEPS)


@pytest.mark.parametrize("kind", ["fp32", "parts", "fp16"])
def test_the_number_of_ranks_does_not_matter(runs, matrix, kind):
    for ranks in matrix[1:]:
        found, alone = losses(runs / f"{kind}-{ranks}"), losses(runs / f"{kind}-1")
        assert {step for step, loss in enumerate(found, 1) if loss is None} == BAD_STEPS
        found, alone = (np.array(values, float) for values in (found, alone))
        np.testing.assert_allclose(found, alone, rtol=1e-5 if kind != "fp16" else 1e-2)


def test_the_loss_scale_falls_and_grows(runs):
    found = [(state["loss_scale"], state["finite_steps"]) for state in states(runs / "fp16-2")]
    expected = [(1024, 1), (512, 0), (512, 1), (512, 2), (512, 3), (256, 0), (256, 1), (256, 2)]
    assert found == expected
    last = json.loads((runs / "fp16-2/metrics.jsonl").read_text().splitlines()[-1])
    assert (last["loss_scale"], last["skipped_steps"]) == (256, 2)


def test_a_resumed_run_ends_bit_for_bit_as_the_baseline(runs):
    baseline, resumed = runs / "fp16-2", runs / "resumed"
    np.testing.assert_array_equal(losses(resumed), losses(baseline))
    assert states(resumed) == states(baseline)
    expected, found = saved_tensors(baseline, STEPS), saved_tensors(resumed, STEPS)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("out", ["late-resumed", "late-moved", "late-tuned"])
def test_a_checkpoint_from_before_the_first_update_is_as_good_as_any(runs, out):
    assert [state["skipped"] for state in states(runs / "late")][:4] == [1, 2, 3, 3]
    exact = out == "late-resumed"  # one began on another number of ranks; fine-tuning begins at the first scale
    np.testing.assert_allclose(
        np.array(losses(runs / out), float), np.array(losses(runs / "late"), float), rtol=0 if exact else 1e-2
    )
    expected, found = (saved_tensors(runs / name, STEPS) for name in ("late", out))
    assert found.keys() == expected.keys()
    assert any(name.startswith("dense.") for name in found)
    if exact:
        assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_checkpoint_that_lacks_the_state_of_weights_that_were_never_updated_is_resumed(runs, data, tmp_path):
    """As version 0.1.0 saved it."""
    out = tmp_path / "run"
    shutil.copytree(runs / "late-resumed", out)
    for step in range(SAVED_BEFORE + 1, STEPS + 1):
        shutil.rmtree(out / STEP.format(step))
    saved = out / STEP.format(SAVED_BEFORE)
    metadata = pickle.loads((saved / ".metadata").read_bytes())
    entries = metadata.state_dict_metadata
    metadata.state_dict_metadata = {name: entry for name, entry in entries.items() if not name.startswith("dense.")}
    (saved / ".metadata").write_bytes(pickle.dumps(metadata))
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest["files"][".metadata"] = entry_of((saved / ".metadata").read_bytes())
    (saved / "manifest.json").write_text(json.dumps(manifest))
    launch_rounds([(2, [{"config": settings(data, STEPS, **LATE), "out": str(out)}])], tmp_path)
    np.testing.assert_array_equal(losses(out), losses(runs / "late"))


@pytest.fixture
def refused(tmp_path, capfd):
    """Trains in this process and returns the one line that it ends with."""

    def refused(tree):
        file = write_config(tmp_path / "config.toml", tree)
        assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 2
        (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
        return line

    return refused


WHERE = rf"samples of the batch: position {POSITION}, \S+part-00\.parquet, row group 3, row 8[;,]"


@pytest.mark.parametrize("parts", [1, 4])
def test_an_error_names_the_loss_and_the_sample(refused, data, parts):
    line = refused(settings(data, train__nonfinite="error", train__micro_batches=parts))
    assert re.match(rf"error: step 2: the loss is not finite; {WHERE}", line), line


def test_an_error_names_the_module(refused, data, tmp_path):
    """The first layer's input is beyond float16."""
    (file,) = data.glob("*.parquet")
    table = pq.read_table(file)
    dense = table["d0"].to_numpy().copy()
    dense[BAD_ROW] = 1e6
    (tmp_path / "large").mkdir()
    changed = table.set_column(table.column_names.index("d0"), "d0", pa.array(dense))
    pq.write_table(changed, tmp_path / "large/part-00.parquet", row_group_size=64)
    scale = {"initial": 1.0}
    tree = settings(tmp_path / "large", train__precision="fp16", train__loss_scale=scale, train__nonfinite="error")
    tree["model"]["loss"] = "binary"
    line = refused(tree)
    assert re.match(rf"error: step 2: the output of module 'model\.dense_arch\.\S+' is not finite; {WHERE}", line), line


def test_one_rank_s_sample_ends_all_ranks_with_one_line(data, tmp_path):
    file = write_config(tmp_path / "config.toml", settings(data, train__nonfinite="error"))
    done = run_trainer("train", file, "--out", tmp_path / "out", ranks=2, seconds=300)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert re.match(rf"error: step 2: the loss is not finite; {WHERE}", lines[0]), lines


def test_a_loss_that_is_not_finite_is_said_once_and_in_the_record(data, tmp_path, capfd):
    file = write_config(tmp_path / "config.toml", settings(data, train__nonfinite="ignore"))
    assert trainer(["train", str(file), "--out", str(tmp_path / "out")]) == 0
    printed = capfd.readouterr().out
    (line,) = re.findall("^warning: the loss is .*$", printed, re.MULTILINE)
    assert "train.nonfinite = 'error'" in line
    assert "docs/guides/what_to_do_when.md" in line
    assert printed.index("step 2/") < printed.index("warning: the loss is ") < printed.index("step 3/")
    assert json.loads((tmp_path / "out/run.json").read_text())["not_finite_at"] == 2
    assert trainer(["train", str(file), "--out", str(tmp_path / "fine"), "--train.steps", "1"]) == 0
    assert "not_finite_at" not in json.loads((tmp_path / "fine/run.json").read_text())
