"""Skewed ids: a few hundred terms beside sums over all ranks and beside draws, and plans that count with them."""

import json
import re

import numpy as np
import pytest
from command import run_trainer, write_config
from jobs import config, write_rows

from torchx_recsys.planner.skew import ids_behind, unique_ids
from torchx_recsys.planner.tables import Zipf
from torchx_recsys.planner.topology import ACHIEVED
from trainer.__main__ import main as trainer

EXPONENTS = (0.0, 0.3, 0.8, 1.0, 1.05, 1.5, 3.0)


def shares(zipf, most):
    """Returns the part of draws of each id, in order of popularity, by the formula."""
    drawn = np.where(np.arange(1, most + 1) <= zipf.ids, np.arange(1.0, most + 1) ** -zipf.exponent, 0)
    return drawn / drawn.sum()


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("ids", [1, 7, 256, 257, 300, 10_000, 3_000_000])
def test_different_ids_are_those_of_a_sum_over_all_ranks(ids, exponent):
    zipf, draws = Zipf(exponent, ids), np.array([0.0, 1.0, 100.0, 1e4, 1e6, 1e9])
    missed = np.log1p(-np.minimum(shares(zipf, ids), 1 - 2.0**-53))
    expected = [-np.expm1(number * missed).sum() for number in draws]
    np.testing.assert_allclose(unique_ids(draws[:, None], [zipf]), expected, rtol=1e-6)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_different_ids_are_those_of_draws(exponent):
    zipf, random = Zipf(exponent, 5000), np.random.default_rng(0)
    drawn = [len(np.unique(random.choice(5000, 3000, p=shares(zipf, 5000)))) for _ in range(50)]
    assert unique_ids(np.array([[3000.0]]), [zipf])[0] == pytest.approx(np.mean(drawn), rel=0.02)


def test_features_of_a_table_share_its_popular_rows():
    both, draws = [Zipf(1.2, 50_000), Zipf(0.7, 900)], np.array([20_000.0, 300.0])
    hit = 1 - np.prod([(1 - shares(zipf, 50_000)) ** number for zipf, number in zip(both, draws, strict=True)], axis=0)
    assert unique_ids(draws[None], both)[0] == pytest.approx(hit.sum(), rel=1e-6)


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05])
def test_the_ids_that_there_are_follow_from_those_that_were_seen(exponent):
    random, draws = np.random.default_rng(0), 200_000
    seen = len(np.unique(random.choice(40_000, draws, p=shares(Zipf(exponent, 40_000), 40_000))))
    assert ids_behind(seen, draws, exponent, 10**8) == pytest.approx(40_000, rel=0.05)
    assert ids_behind(seen, draws, exponent, 30_000) == 30_000
    assert ids_behind(0, 0.0, exponent, 10) == 1


@pytest.fixture
def tables(tmp_path):
    """A configuration of two large tables, which has no data."""
    sparse = {"user": {"rows": 4_000_000, "hotness": 1.0}, "items": {"rows": 2_000_000, "hotness": 30.0}}
    tree = config(tmp_path / "nowhere", data__sparse=sparse, data__global_batch_size=65536, model__embedding_dim=64)
    return write_config(tmp_path / "config.toml", tree)


@pytest.fixture
def statistics(tmp_path):
    def write(zipf=1.1, **changes):
        features = {name: {"hotness": 20.0, "zipf": zipf, "distinct": 400_000} for name in ("user", "items", "other")}
        file = tmp_path / "statistics.json"
        file.write_text(json.dumps({"version": 1, "rows": 1_000_000, "features": features} | changes))
        return file

    return write


def planned(capsys, *words):
    assert trainer(["plan", *map(str, words), "--on", "h100:1", "--planner.sharding-types", "table_wise"]) == 0
    return capsys.readouterr().out


def test_statistics_count_as_the_same_keys_of_the_configuration_do(tables, statistics, capsys):
    ids = ids_behind(400_000, 20e6, 1.1, 2_000_000)
    keys = [(f"--data.sparse.{name}.hotness", 20.0) for name in ("user", "items")]
    keys += [(f"--data.sparse.{name}.zipf", 1.1) for name in ("user", "items")]
    keys += [(f"--data.sparse.{name}.distinct", ids) for name in ("user", "items")]
    measured = planned(capsys, tables, "--planner.statistics", statistics())
    written = planned(capsys, tables, *(str(word) for pair in keys for word in pair))
    assert (
        measured.partition("Next:")[0] == written.partition("Next:")[0] != planned(capsys, tables).partition("Next:")[0]
    )


def test_the_update_of_skewed_ids_is_that_of_fewer_rows(tables, statistics, capsys):
    """Of an embedding on a GPU, bytes count: 4 of each id's gradient, and twice those of each row that is touched."""

    def updates(text):
        return [float(value) for value in re.search(r"update: tables +([\d.]+) +([\d.]+)", text).groups()]

    def expected(zipf):
        ids = ids_behind(400_000, 20e6, zipf, 2_000_000)
        rows = unique_ids(np.array([[20.0 * 65536]]), [Zipf(zipf, ids)])[0]
        return (4 * 20 * 65536 * 64 + 2 * rows * 64 * 4) / (ACHIEVED * 3350e9) * 1000

    for zipf in (0.0, 1.4):
        slowest, mean = updates(planned(capsys, tables, "--planner.statistics", statistics(zipf)))
        assert slowest == pytest.approx(expected(zipf), abs=1.2e-3)
        assert mean == pytest.approx(2 * expected(zipf) / 8, abs=1.2e-3)
    assert expected(1.4) < 0.9 * expected(0.0)


@pytest.mark.parametrize(("zipf", "cached"), [(0.6, 0.1), (1.2, 0.1), (1.2, 0.7)])
def test_a_cache_of_popular_rows_serves_their_lookups(tables, capsys, tmp_path, zipf, cached):
    """The lookup takes as long as TorchRec has it where a part of the rows that is as large is cached."""
    words = ["--planner.tables.items.compute-kernels", "fused_uvm_caching", "--out", tmp_path / "plan.json"]
    planned(capsys, tables, *words)
    plan = json.loads((tmp_path / "plan.json").read_text())
    (module,) = plan["modules"].values()
    module["items"]["cache_load_factor"] = cached
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = [*words[:2], "--planner.plan", tmp_path / "plan.json", "--data.sparse.items.zipf", zipf]
    text = planned(capsys, tables, *words)
    hits = shares(Zipf(zipf, 2_000_000), 2_000_000)[: int(cached * 2_000_000)].sum()
    bandwidth = ACHIEVED * (hits * 3350 + (1 - hits) * 32) / 10
    ids = 65536 * 30
    expected = ids * 64 * 4 / (bandwidth * 1e9) * 1000
    assert float(re.search(r"lookup +([\d.]+)", text)[1]) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "which is no statistics: version is 2: input should be 1"),
        ({"rows": 0}, "which is no statistics: rows is 0: input should be greater than 0"),
        ({"features": {}}, "which has no feature 'user'"),
        ({"features": {"users": {"hotness": 1, "zipf": 1, "distinct": 1}}}, "no feature 'user'; did you mean 'users'?"),
        ({"features": {"user": {"hotness": 1, "zipf": 1}}}, "'features.user.distinct' is missing"),
        ({"features": {"user": {"hotness": -1, "zipf": 1, "distinct": 1}}}, "features.user.hotness is -1"),
    ],
)
def test_wrong_statistics_are_one_line(tables, statistics, capsys, changes, message):
    file = statistics(**changes)
    assert trainer(["plan", str(tables), "--planner.statistics", str(file)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: planner.statistics is '{file}'")
    assert message in error
    assert error.count("\n") == 1


def test_statistics_that_cannot_be_read_are_one_line(tables, tmp_path, capsys):
    (tmp_path / "no.json").write_text("{")
    for name, message in (("no.json", "which is not JSON"), ("none.json", "No such file")):
        assert trainer(["plan", str(tables), "--planner.statistics", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1


def test_a_job_plans_with_statistics_and_refuses_others(tmp_path):
    data = write_rows(tmp_path / "data", [64])
    settings = write_config(tmp_path / "config.toml", config(data, train__steps=1))
    file, names = tmp_path / "statistics.json", [f"s{number}" for number in range(6)]
    features = {name: {"hotness": 2.0, "zipf": 1.0, "distinct": 5} for name in names}
    words = ("train", settings, "--planner.statistics", file, "--out")
    file.write_text(json.dumps({"version": 1, "rows": 64, "features": features}))
    done = run_trainer(*words, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    file.write_text(json.dumps({"version": 1, "rows": 64, "features": {}}))
    done = run_trainer(*words, tmp_path / "refused")
    assert done.returncode == 2
    assert "which has no feature 's0'" in done.stderr
