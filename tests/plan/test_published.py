"""Forecasts of published runs: which fit the constants, how far the others are, and the formula beside NumPy's."""

import itertools
import re
import statistics

import numpy as np
import pytest
import torch
from command import write_config
from jobs import config
from plan_command import planned

from benchmarks.published import PAGE, error, fit, forecast, published, published_long, render, render_long
from torchx_recsys.apps.plan.clusters import parse_cluster
from torchx_recsys.apps.plan.planning import plan_on
from torchx_recsys.planner.hardware import HOSTS
from torchx_recsys.planner.topology import ACHIEVED, SYSTEMS
from trainer.config.root import Config
from trainer.training.sharded_model import build_unsharded_model

pytestmark = pytest.mark.more("computes for seconds")

AIMED_AT = 0.15
RUNS = published()


@pytest.fixture(scope="module")
def steps():
    return [forecast(run) for run in RUNS]


def test_half_of_each_benchmarks_runs_are_held_out():
    for benchmark in ("mlperf", "torchrec_dlrm"):
        fitted = [run.is_fitted for run in RUNS if run.benchmark == benchmark]
        assert fitted == [True, False] * (len(fitted) // 2)
        assert len(fitted) >= 4


def test_the_page_says_which_runs_are_held_out_and_how_far_their_forecasts_are():
    """From the published data and the page's own forecasts, not from those of today."""
    text = PAGE.read_text()
    rows = re.findall(
        r"^\| .*?\| `[\w.-]+:\w+` \| ([\d,]+) \| ([\d.]+) M \| ([\d.]+) M \| (.*?) \| (.*?) \|$", text, re.M
    )
    errors = {"fitted": [], "held out": []}
    for run, (batch, measured, expected, off, constants) in zip(RUNS, rows, strict=True):
        assert int(batch.replace(",", "")) == run.batch
        assert float(measured) == pytest.approx(run.samples_per_second / 1e6, rel=5e-3)
        of_row = float(expected) / (run.samples_per_second / 1e6) - 1
        assert float(off.removesuffix("%")) / 100 == pytest.approx(of_row, abs=0.015)
        assert constants == ("fitted" if run.is_fitted else "held out")
        errors[constants].append(abs(of_row))
    claimed = re.search(r"held out is (\d+)% over all of them, (\d+)% over HugeCTR's; .* fitted, (\d+)%\.", text)
    hugectr = [
        abs(float(f) / float(m) - 1)
        for run, (_, m, f, _, c) in zip(RUNS, rows, strict=True)
        if run.system == "hugectr" and c == "held out"
    ]
    for percent, found in zip(claimed.groups(), (errors["held out"], hugectr, errors["fitted"]), strict=True):
        assert int(percent) / 100 == pytest.approx(statistics.median(found), abs=0.01)
    assert statistics.median(errors["held out"]) <= AIMED_AT


@pytest.mark.slow
def test_the_table_and_the_constants_are_current(steps):
    assert render(RUNS, steps) in PAGE.read_text(), "run `make measure WHAT=published`"
    achieved, more = fit(RUNS, steps)
    assert achieved == pytest.approx(ACHIEVED, abs=0.01)
    assert more == {name: pytest.approx(system.milliseconds, abs=0.1) for name, system in SYSTEMS.items()}
    assert statistics.median(abs(error(run, step)) for run, step in zip(RUNS, steps, strict=True)) <= AIMED_AT


@pytest.mark.more("traces a step of thousands of tokens")
@pytest.mark.slow
def test_the_forecasts_of_long_histories_are_on_the_page():
    assert render_long(published_long()) in PAGE.read_text(), "run `make measure WHAT=published`"


@pytest.mark.slow
def test_constants_that_made_the_runs_are_found_again(steps):
    """Of runs that take exactly what other constants say, whatever those in use are."""
    made, more = 0.4, {"torchrec": 3.0, "hugectr": 1.5}
    runs = [
        run.__class__(**{**run.__dict__, "samples_per_second": 1000 * run.batch / milliseconds})
        for run, step in zip(RUNS, steps, strict=True)
        for milliseconds in [
            (step.total - step.latency - step.constant) * ACHIEVED / made + step.latency + more[run.system]
        ]
    ]
    assert fit(runs, steps) == (pytest.approx(made), pytest.approx(more))


def tree_of(precision, system, **changes):
    return config(
        "nowhere",
        data__sparse={f"t{n}": {"rows": rows, "hotness": 4.0} for n, rows in enumerate((10**6, 10**5, 10**5, 50))},
        data__global_batch_size=65536,
        model__embedding_dim=64,
        model__dense_layers=[512, 256],
        model__over_layers=[1024, 512],
        planner__sharding_types=["table_wise"],
        planner__system=system,
        train__precision=precision,
        **changes,
    )


def planned_on(on, precision, system, **changes):
    settings = Config.model_validate(tree_of(precision, system, **changes))
    return plan_on(build_unsharded_model(settings, torch.device("meta")), settings, parse_cluster(on))


def by_hand(plan, precision, system):
    """Returns the milliseconds of a step of whole tables, in NumPy, from the data sheet and what the model does."""
    host, ranks, hosts = HOSTS[plan.cluster.name], plan.cluster.ranks, plan.cluster.nodes
    gpu, local = host.gpu, 65536 // ranks
    reached = 0.51
    memory, link = reached * gpu.hbm_gb_per_second * 1e9, reached * gpu.nvlink_gb_per_second / 2 * 1e9
    network = reached * host.network_gb_per_second / 8 * 1e9
    of_ranks = np.zeros((ranks, 4))
    for table in plan.placed:
        ids, bags, width = 65536 * 4, 65536, 64
        unique = table.rows * -np.expm1(ids * np.log1p(-1 / table.rows))
        sent = bags * width * 4
        same_host, elsewhere = (ranks // hosts - 1) / ranks, (ranks - ranks // hosts) / ranks
        exchange = sent * max(same_host / link, elsewhere / network)
        lookup = (bags * 16 + ids * width * 4) / memory
        update = (4 * ids * width + 2 * unique * width * 4) / memory
        of_ranks[table.ranks[0]] += [lookup, exchange, exchange, update]
    rate = {"fp32": gpu.fp32_tflops, "bf16": gpu.half_tflops}[precision] * reached * 1e12
    layers, pairs = [2, 512, 256, 64], 5 * 4 // 2
    over = [64 + pairs, 1024, 512, 1]
    products = sum(6 * local * a * b for a, b in itertools.pairwise(layers)) - 2 * local * 2 * 512
    products += sum(6 * local * a * b for a, b in itertools.pairwise(over)) + 6 * local * 5 * 5 * 64
    weights = sum((a + 1) * b for a, b in [*itertools.pairwise(layers), *itertools.pairwise(over)])
    ring = 2 * 4 * weights * (ranks - 1) / ranks / min(link, network * ranks / hosts if hosts > 1 else np.inf)
    moved = plan.problem.dense.work.bytes / memory
    dense, more = {
        "hugectr": (max(products / rate, ring), 0.7e-3),
        "torchrec": (products / rate + moved + ring, 7.2e-3),
    }[system]
    latency = 4 * (4.4e-6 + 2 * ((ranks // hosts - 1) * 0.52e-6 + np.log2(hosts) * 5e-6))
    return 1000 * (of_ranks.max(axis=0).sum() + dense + latency + more)


@pytest.mark.parametrize("system", ["torchrec", "hugectr"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("on", ["h100:1", "a100:4"])
def test_a_forecast_is_the_sum_of_what_data_sheets_and_constants_say(on, precision, system):
    plan = planned_on(on, precision, system)
    assert plan.step.total == pytest.approx(by_hand(plan, precision, system), rel=1e-9)
    (other,) = plan.step_of_others.values()
    assert other.total == pytest.approx(
        by_hand(plan, precision, {"torchrec": "hugectr"}.get(system, "torchrec")), rel=1e-9
    )


def test_products_take_the_rate_of_their_precision():
    """H100: 67, 494.5, 989.5 and 989.5 * 10^12 operations a second; the dense part has a batch that keeps it busy."""
    ways = {"fp32": {}, "tf32": {"train__tf32": True}, "bf16": {}, "fp16": {}}
    dense = {
        name: planned_on("h100:1", name.replace("tf32", "fp32"), "hugectr", **more).step.dense
        for name, more in ways.items()
    }
    for name, times in {"tf32": 494.5 / 67, "bf16": 989.5 / 67, "fp16": 989.5 / 67}.items():
        assert dense["fp32"] / dense[name] == pytest.approx(times)


def test_a_forecast_says_for_which_system_it_is_and_what_overlaps(tmp_path, capsys):
    file, page = write_config(tmp_path / "config.toml", tree_of("bf16", "hugectr")), tmp_path / "plan.html"
    text = planned(capsys, file, "--on", "h100:2", "--page", page)
    lines = {name: re.search(rf"^{name} +(.*)$", text, re.M)[1] for name in ("step", "figures", "other")}
    assert "of h100's data sheet, not measured; for HugeCTR, as in MLPerf: " in lines["figures"]
    assert "ids overlaps with the step before, the sum of the dense part's gradients" in lines["figures"]
    assert ", for TorchRec, as this trainer runs it: " in lines["other"]
    swapped = planned(capsys, file, "--on", "h100:2", "--planner.system", "torchrec")
    assert re.search(r"^step +(.*)$", swapped, re.M)[1] == lines["other"].partition(", for ")[0]
    assert "HugeCTR, as in MLPerf" in page.read_text()
    for flags in (["--on", "h100:2", "h100:1"], ["--find", "h100"], ["--on", "h100:1", "--vary", "batch"]):
        words = [*flags, "--prices", write_prices(tmp_path)] if "--find" in flags else flags
        assert "for HugeCTR, as in MLPerf" in planned(capsys, file, *words)


def write_prices(folder):
    file = folder / "prices.toml"
    file.write_text('date = 2026-01-31\ncurrency = "USD"\n[hosts]\nh100 = 40.0\n')
    return file
