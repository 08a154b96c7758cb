"""Averaged weights: those of a plain computation under every plan, evaluated, resumed and resharded.

By default each plan comes on two ranks, one also on one, and another on four; `--all` takes all of them. `make test`
has four of these.
"""

import json
import shutil
from itertools import product

import numpy as np
import pytest
import torch
from command import run_trainer, write_config
from jobs import config, launch_rounds, saved_tensors, write_rows
from plain_model import plain_model
from torch import nn

from trainer.batches.loader import Loader
from trainer.config.root import Config
from trainer.data.dataset import find_files
from trainer.data.epoch_order import Lanes
from trainer.models.embeddings import table_of_weight

pytestmark = pytest.mark.few(4, "the other plans")
PLANS = ["table_wise", "row_wise", "data_parallel", "column_wise", "table_row_wise", "grid_shard"]
REPLANNED = [
    ("table_wise", "column_wise"),
    ("column_wise", "data_parallel"),
    ("data_parallel", "row_wise"),
    ("row_wise", "grid_shard"),
    ("grid_shard", "table_wise"),
]
DECAY = 0.8
STEPS = 12


def averaged(folder, kind, steps=STEPS, evaluate=4, **changes):
    """Two features share a table, and a table has rows that no sample names."""
    mode = {"planner__mode": "data_parallel"} if kind == "data_parallel" else {"planner__sharding_types": [kind]}
    settings = config(
        folder / "data",
        **mode,
        optimizer__ema={"decay": DECAY, "tables": True},
        data__validation=[str(folder / "validation")],
        evaluate__every_steps=evaluate,
        checkpoint__every_steps=6,
        train__steps=steps,
        **changes,
    )
    settings["data"]["sparse"] |= {"s0": {"rows": 300}, "s1": {"rows": 102}, "s2": {"rows": 102, "table": "s1"}}
    return settings


def combinations(whole):
    """Returns plans with numbers of ranks."""
    if whole:
        return [*product(PLANS, (1, 2, 4))]
    pairs = [(kind, 2) for kind in PLANS]
    return [*pairs[:2], (PLANS[0], 1), (PLANS[1], 4), *pairs[2:]]


MATRIX = "kind, ranks", combinations


@pytest.fixture(scope="module")
def runs(cells, tmp_path_factory):
    """Plans on several numbers of ranks; halves of them that are resumed under the same plan, and under others."""
    replanned = cells("before, after")
    halves = dict.fromkeys([*cells("kind"), *(before for before, _ in replanned)])
    matrix = dict.fromkeys([*((kind, 2) for kind in ("table_wise", "row_wise", *halves)), *cells("kind, ranks")])
    folder = tmp_path_factory.mktemp("averages")
    write_rows(folder / "data", [200, 10, 54])
    write_rows(folder / "validation", [90], seed=1)
    off = averaged(folder, "table_wise", optimizer__ema__decay=None, optimizer__ema__tables=False)
    weights = averaged(folder, "table_wise", optimizer__ema__evaluate=False)
    dense = averaged(folder, "table_wise", optimizer__ema__tables=False, evaluate=0)
    rounds = [
        (
            ranks,
            [
                {"config": averaged(folder, kind), "out": str(folder / f"{kind}-{ranks}")}
                for kind, on in matrix
                if on == ranks
            ],
        )
        for ranks in (1, 2, 4)
    ]
    rounds[1][1].extend(
        {"config": settings, "out": str(folder / name)}
        for name, settings in (("off", off), ("weights", weights), ("dense", dense))
    )
    rounds[1][1].extend({"config": averaged(folder, kind, 6), "out": str(folder / f"{kind}-half")} for kind in halves)
    launch_rounds(rounds, folder)
    for before, after in replanned:
        shutil.copytree(folder / f"{before}-half", folder / f"{before}-to-{after}")
    resumed = [{"config": averaged(folder, kind), "out": str(folder / f"{kind}-half")} for kind in halves]
    others = [
        {"config": averaged(folder, after), "out": str(folder / f"{before}-to-{after}")} for before, after in replanned
    ]
    launch_rounds([one for one in ((2, resumed), (4, others)) if one[1]], folder)
    return folder


@pytest.fixture(scope="module")
def reference(runs):
    """The averages of a plain model in float64, of all rows in every step, and their log loss on validation data."""
    settings = Config.model_validate(averaged(runs, "table_wise"))
    model = plain_model(settings).double()
    averages = {name: value.clone() for name, value in model.state_dict().items()}
    for batch in batches(settings, "train", 8, 64):
        for parameter in model.parameters():
            parameter.grad = None
        log_loss(model, batch).backward()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter -= (0.5 if table_of_weight(name) else 0.1) * parameter.grad
                averages[name] = DECAY * averages[name] + (1 - DECAY) * parameter
    model.load_state_dict(averages)
    validation = next(batches(settings, "validation", 1, 90))
    return averages, log_loss(model, validation).item()


def batches(settings, split, lanes, size):
    files = find_files(f"data.{split}", getattr(settings.data, split), settings.data)
    shuffle = split == "train"
    loader = Loader(files, settings.data, Lanes(files.rows, lanes, size), 0, 1, settings.train.seed, shuffle)
    return loader.batches(0, STEPS if shuffle else 1)


def log_loss(model, batch):
    logits = model(batch.dense.double(), batch.sparse)
    each = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels.double(), reduction="none")[:, 0]
    return (each * batch.weights).sum() / batch.weights.sum()


def averages_in(tensors):
    """The averages after the last step, by docs/guides/best_weights.md, and only if every row has one number."""
    found = {}
    for name, value in tensors.items():
        if not name.startswith("ema."):
            continue
        found[name.removeprefix("ema.model.")] = value
        if table_of_weight(name):
            weight, touched = tensors["model." + name[4:]], tensors[f"ema_touched.{name.split('.')[-2]}.steps"]
            touched = touched.view(-1, len(weight))
            assert (touched == touched[0]).all()
            left = DECAY ** (tensors["ema_steps"] - touched[0]).double()[:, None]
            found[name.removeprefix("ema.model.")] = weight + (value - weight) * left
    return found


def evaluations(out):
    return [json.loads(line) for line in (out / "evaluations.jsonl").read_text().splitlines()]


def assert_is_reference(out, reference):
    averages, loss = reference
    found = averages_in(saved_tensors(out, STEPS))
    assert found.keys() == averages.keys()
    for name, value in averages.items():
        np.testing.assert_allclose(found[name].double(), value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert evaluations(out)[-1]["log_loss"] == pytest.approx(loss, rel=1e-5)


def test_averages_are_those_of_a_plain_computation(runs, reference, kind, ranks):
    assert_is_reference(runs / f"{kind}-{ranks}", reference)


def test_most_rows_are_not_touched_in_every_step(runs):
    """So that the test above is one of rows that were idle for several steps, and for all of them."""
    touched = saved_tensors(runs / "table_wise-2", STEPS)["ema_touched.s0.steps"]
    assert set(touched.tolist()) > {0, STEPS, STEPS - 1, STEPS - 2}


def test_averages_change_no_bit_of_the_training(runs):
    without, averaged = saved_tensors(runs / "off", STEPS), saved_tensors(runs / "table_wise-2", STEPS)
    assert without.keys() == {name for name in averaged if not name.startswith("ema")}
    assert all(torch.equal(value, averaged[name]) for name, value in without.items())
    assert (runs / "off/metrics.jsonl").exists()


def test_the_trained_weights_are_evaluated_where_that_is_asked_for(runs):
    assert evaluations(runs / "weights") == evaluations(runs / "off")
    assert evaluations(runs / "weights") != evaluations(runs / "table_wise-2")


def test_tables_need_not_be_averaged(runs, reference):
    tensors = saved_tensors(runs / "dense", STEPS)
    averaged = {name for name in tensors if name.startswith("ema")}
    assert averaged == {f"ema.model.{name}" for name in reference[0] if not table_of_weight(name)}
    all_averaged = saved_tensors(runs / "table_wise-2", STEPS)
    assert all(torch.equal(tensors[name], all_averaged[name]) for name in averaged)


@pytest.mark.few(2, "the other plans")
@pytest.mark.parametrize("kind", PLANS)
def test_a_resumed_run_has_the_same_averages_bit_for_bit(runs, kind):
    straight, resumed = saved_tensors(runs / f"{kind}-2", STEPS), saved_tensors(runs / f"{kind}-half", STEPS)
    assert straight.keys() == resumed.keys()
    for name, value in straight.items():
        assert torch.equal(value, resumed[name]), name
    lines, resumed_lines = evaluations(runs / f"{kind}-2"), evaluations(runs / f"{kind}-half")
    assert [line for line in resumed_lines if line["step"] != 6] == lines


@pytest.mark.few(2, "the other plans")
@pytest.mark.parametrize(("before", "after"), REPLANNED)
def test_another_plan_goes_on_with_the_averages(runs, reference, before, after):
    assert_is_reference(runs / f"{before}-to-{after}", reference)


def test_the_evaluate_command_evaluates_the_averages(runs):
    out = runs / "row_wise-2"
    done = run_trainer("evaluate", out / "config.toml", "--out", out, "--split", "validation")
    assert done.returncode == 0, done.stderr
    written = json.loads((out / "evaluation-validation.json").read_text())
    assert written["log_loss"] == pytest.approx(evaluations(out)[-1]["log_loss"], rel=1e-6)
    flags = ["--optimizer.ema.evaluate", "False"]
    assert run_trainer("evaluate", out / "config.toml", "--out", out, "--split", "validation", *flags).returncode == 0
    trained = json.loads((out / "evaluation-validation.json").read_text())
    assert trained["log_loss"] == pytest.approx(evaluations(runs / "weights")[-1]["log_loss"], rel=1e-5)


def test_a_checkpoint_without_averages_is_not_resumed_with_them(runs, tmp_path):
    shutil.copytree(runs / "off", tmp_path / "off")
    file = write_config(tmp_path / "config.toml", averaged(runs, "table_wise", 20))
    done = run_trainer("train", file, "--out", tmp_path / "off")
    assert done.returncode == 2
    assert "optimizer.ema.decay is None there and 0.8 here" in done.stderr
    done = run_trainer("evaluate", file, "--out", tmp_path / "off", "--split", "validation")
    assert done.returncode == 2
    assert "lacks" in done.stderr
    assert "'ema" in done.stderr
