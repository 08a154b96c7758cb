"""Models without embedding tables: all features are numbers."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import write_config
from exported import step_directory
from jobs import config, launch_rounds, losses, saved_tensors, write_rows
from predictions import read

from torchx_recsys.apps.export.load import load
from trainer.__main__ import main as trainer

STEPS = 12  # three epochs, each of whose last batch is short
RATE = 0.5
OVER_LAYERS = ("deepfm", "dbmtl", "xdeepfm", "autoint", "masknet", "finalmlp", "wukong")
MODELS = (*OVER_LAYERS, "mmoe", "ple")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows"), [130, 90], sparse_features=1)


def settings(data, **changes):
    """Returns a small configuration without sparse features."""
    tree = config(data)
    del tree["data"]["sparse"], tree["optimizer"]["sparse"], tree["planner"]
    tree["model"] = {"name": "wide_deep", "over_layers": [8]}
    tree["train"]["steps"] = STEPS
    for path, value in changes.items():
        section, _, key = path.partition("__")
        tree[section] = tree.get(section, {}) | {key: value} if key else value
    return tree


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """Runs on one and on two ranks, some of them stopped and resumed, and a step of all rows of a file."""
    folder = tmp_path_factory.mktemp("runs")
    saved = {"checkpoint__every_steps": 5, "optimizer__ema": {"decay": 0.9}, "data__validation": [str(data)]}
    saved |= {"evaluate__every_steps": 4}

    def jobs(ranks):
        def job(name, **changes):
            return {"config": settings(data, **changes), "out": str(folder / f"{name}-{ranks}")}

        return [
            job("straight", **saved),
            job("resumed", **saved, train__steps=5),
            job("resumed", **saved),
            job("in-parts", train__micro_batches=2),
            job("skipping", train__nonfinite="skip"),
            job("data-parallel", planner__mode="data_parallel"),
            job("summed", checkpoint__every_steps=5, report__interval_steps=STEPS),
            *(job(model, model__name=model, model__over_layers=[8]) for model in OVER_LAYERS),
            *(job(model, model={"name": model, "experts": {"layers": [4]}}) for model in ("mmoe", "ple")),
        ]

    linear = settings(
        write_rows(folder / "rows", [64], sparse_features=1),
        model__over_layers=[],
        train__steps=2,
        checkpoint__every_steps=1,
        optimizer__dense={"name": "sgd", "learning_rate": RATE},
    )
    tuned = settings(data, finetune__checkpoint=str(folder / "straight-1"), train__steps=1)
    beside = [{"config": linear, "out": str(folder / "linear")}, {"config": tuned, "out": str(folder / "tuned")}]
    launch_rounds([(1, jobs(1) + beside), (2, jobs(2))], folder)
    return folder


@pytest.mark.parametrize("name", ["straight", "in-parts", "skipping", "data-parallel", *MODELS])
def test_losses_do_not_depend_on_the_number_of_ranks(runs, name):
    alone = losses(runs / f"{name}-1")
    assert len(alone) == STEPS
    np.testing.assert_allclose(losses(runs / f"{name}-2"), alone, rtol=1e-5)


@pytest.mark.parametrize("name", ["in-parts", "skipping", "data-parallel"])
def test_the_way_of_a_step_does_not_change_it(runs, name):
    np.testing.assert_allclose(losses(runs / f"{name}-1"), losses(runs / "straight-1"), rtol=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_resumed_run_equals_an_undisturbed_run(runs, ranks):
    straight, resumed = runs / f"straight-{ranks}", runs / f"resumed-{ranks}"
    assert losses(resumed) == losses(straight)
    expected, found = saved_tensors(straight, STEPS), saved_tensors(resumed, STEPS)
    assert expected.keys() == found.keys()
    assert any(name.startswith("ema.") for name in expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("ranks", [1, 2])
def test_saves_within_a_report_interval_leave_its_loss_as_it_is(runs, ranks):
    (line,) = (runs / f"summed-{ranks}" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["loss"] == pytest.approx(np.mean(losses(runs / "straight-1")), rel=1e-5)


def test_a_step_of_a_linear_model_is_that_of_logistic_regression(runs):
    """Both parts of wide_deep are linear without hidden layers, and get the same gradient."""
    rows = pq.read_table(next((runs / "rows").iterdir()))
    numbers = np.stack([rows["d0"], rows["d1"], np.ones(64)], axis=1).astype(np.float64)
    before, after = (coefficients(runs / "linear", step) for step in (1, 2))
    errors = 1 / (1 + np.exp(-numbers @ before.sum(axis=0))) - rows["label"].to_numpy()
    np.testing.assert_allclose(after, before - RATE * errors @ numbers / 64, atol=1e-7)


def coefficients(run, step):
    """Returns the weights of the wide and of the deep part, with the bias last, `[2, 3]` float64."""
    saved = {name: value.double().numpy() for name, value in saved_tensors(run, step).items()}
    parts = [[value for name, value in saved.items() if f".{part}." in name] for part in ("wide", "deep")]
    return np.stack(
        [np.concatenate([one.ravel() for one in sorted(part, key=lambda one: -one.ndim)]) for part in parts]
    )


def test_a_fine_tuned_run_begins_with_the_weights_of_another(runs):
    assert losses(runs / "tuned")[0] < losses(runs / "straight-1")[0]


def test_its_predictions_are_those_of_its_export(runs, data, tmp_path, capsys):
    run, parts, exports = str(runs / "straight-1"), tmp_path / "parts", tmp_path / "exports"
    file = f"{run}/config.toml"
    assert trainer(["predict", file, "--out", run, "--source", str(data), "--to", str(parts)]) == 0
    assert trainer(["export", file, "--out", run, "--to", str(exports)]) == 0
    columns = pa.concat_tables(pq.read_table(file) for file in sorted(data.iterdir())).select(["d0", "d1"])
    answers = load(step_directory(exports))(columns.to_pydict())["label_probability"]
    np.testing.assert_allclose(answers, read(parts)["label_probability"], rtol=0, atol=1e-6)
    for flag, value in {"--quantize": "int8", "--shard-bytes": "64"}.items():
        assert trainer(["export", file, "--out", run, "--to", str(exports), flag, value]) == 2
        assert f"{flag} is {value}, but the model has no tables; leave it out" in capsys.readouterr().err


@pytest.mark.parametrize("on", [["--world-size", "2"], ["--on", "h100:2"]])
def test_its_plan_has_no_tables(data, tmp_path, capsys, on):
    file, plan, page = write_config(tmp_path / "config.toml", settings(data)), tmp_path / "plan.json", tmp_path / "page"
    assert trainer(["plan", str(file), *on, "--out", str(plan), "--page", str(page)]) == 0
    assert "the model has no tables; every rank holds all of it" in capsys.readouterr().out
    assert "the model has no tables" in page.read_text()
    assert json.loads(plan.read_text())["modules"] == {}


REFUSED = {
    "model": ({"name": "dlrm"}, "model.name is 'dlrm', which multiplies embeddings with each other, but data.sparse"),
    "model__name": ("din", "model.target is unset"),
    "data__dense": ({}, "data.dense and data.sparse are both empty; name at least one feature"),
    "optimizer__sparse": ({"name": "adam"}, "optimizer.sparse.name is 'adam', but no feature has a table"),
    "optimizer__ema": ({"decay": 0.9, "tables": True}, "optimizer.ema.tables is True, but no feature has a table"),
    "comms__forward": ("bf16", "comms.forward is 'bf16', but no feature has a table, which alone would use it"),
    "checkpoint__full_every": (2, "checkpoint.full_every is 2, but no feature has a table"),
    "planner__sharding_types": (["row_wise"], "planner.sharding_types is ['row_wise'], but no feature has a table"),
    "model__embedding_dim": (8, "model.embedding_dim is 8, but no feature has a table"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_what_needs_tables_is_refused_in_one_line(data, tmp_path, capsys, key):
    value, found = REFUSED[key]
    file = write_config(tmp_path / "config.toml", settings(data, **{key: value}))
    assert trainer(["train", str(file), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert found in error
    assert error.count("\n") == 1
