"""Exports with tables in shards: the answers are those of tables in the program, bit for bit."""

import numpy as np
import pytest
from exported import ask, parity_of, step_directory
from jobs import config, launch, write_rows
from raw_columns import columns_config, write_columns
from ready_made import NAMES, ready_made, sampled, write_ratings
from sequences import sequence_config, write_histories

from trainer.__main__ import main as trainer
from trainer.tools.vocabulary import vocabulary

STEPS = 6
RATES = {"optimizer__sparse__learning_rate": 0.5, "optimizer__dense__learning_rate": 0.05}
SHARD_BYTES = 1000

MATRIX = "name", lambda whole: sampled(NAMES, 1, whole)


@pytest.fixture(scope="module")
def runs(matrix, tmp_path_factory):
    """Runs of built-in models, of one with every rule and averages, of one's own, and of one with float16 tables."""
    folder = tmp_path_factory.mktemp("runs")
    ratings, plain = write_ratings(folder), write_rows(folder / "plain", [130])
    raw, histories = write_columns(folder / "raw"), write_histories(folder / "histories", 130)
    vocabulary((str(raw),), ("listed",), str(folder / "vocabulary"), min_count=8, unseen_rows=3)
    here = {"train__steps": STEPS, **RATES}
    trees = {name: ready_made(name, ratings, **here) for name in matrix}
    trees["rules"] = columns_config(
        raw,
        folder / "vocabulary/listed.parquet",
        optimizer__ema={"decay": 0.8, "tables": True},
        planner__sharding_types=["column_wise"],
        planner__min_columns=4,
        train__steps=STEPS,
    )
    trees["own"] = sequence_config(histories, "custom:SumOfSequences", data__validation=[str(histories)], **here)
    del trees["own"]["model"]["target"], trees["own"]["model"]["history"], trees["own"]["model"]["over_layers"]
    rows = {"data__validation": [str(plain)], "planner__sharding_types": ["row_wise"], **here}
    trees["half"] = config(plain, model__table_precision="fp16", **rows)
    launch([{"config": tree, "out": str(folder / name)} for name, tree in trees.items()], 2, folder)
    return folder


def export(runs, name, to, *flags):
    """Exports a run and returns the directory."""
    words = ["export", runs / name / "config.toml", "--out", runs / name, "--to", to, *flags]
    assert trainer([str(word) for word in words]) == 0
    return step_directory(to)


@pytest.fixture(scope="module")
def whole(runs):
    """Directories with tables in the program, by run."""
    names = [file.parent.name for file in runs.glob("*/config.toml")]
    return {name: export(runs, name, runs / "whole" / name) for name in names}


@pytest.fixture(scope="module")
def shards(runs, whole):
    """Directories with tables in shards, by run."""
    return {name: export(runs, name, runs / "shards" / name, "--shard-bytes", SHARD_BYTES) for name in whole}


@pytest.fixture(scope="module")
def answers(whole, shards):
    """The outputs of both for the parity rows, by run."""
    columns = {name: parity_of(directory)["columns"] for name, directory in whole.items()}
    found = ask(*((kind[name], columns[name]) for name in whole for kind in (whole, shards)))
    return dict(zip(whole, zip(found[::2], found[1::2], strict=True), strict=True))


def assert_same(answers, directory, name):
    of_program, of_shards = answers[name]
    assert of_shards == of_program
    expected = parity_of(directory)["answers"]
    assert of_shards.keys() == expected.keys()
    for output, values in expected.items():
        np.testing.assert_allclose(of_shards[output], values, rtol=0, atol=1e-6)
        assert np.ptp(np.asarray(values), axis=0).max() > 1e-5


def test_built_in_models_answer_as_with_tables_in_the_program(shards, answers, name):
    assert_same(answers, shards[name], name)


@pytest.mark.parametrize("run", ["rules", "own", "half"])
def test_rules_and_models_of_ones_own_too(shards, answers, run):
    assert_same(answers, shards[run], run)
