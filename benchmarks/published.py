"""Forecasts the steps of published runs, and fits the constants of the forecasts.

Writes docs/explanation/published_runs.md.
Takes a minute.

Fits the constants of `torchx_recsys/planner/topology.py` to every other run of each benchmark, in the order of
docs/published.json, and tests the constants on the other runs. Measures nothing.
"""

import json
import re
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from docs.generate import ROOT, table, write_measured
from torchx_recsys.apps.plan.clusters import parse_cluster
from torchx_recsys.apps.plan.planning import plan_on
from torchx_recsys.planner.step_time import StepTime
from torchx_recsys.planner.topology import ACHIEVED, SYSTEMS
from trainer.config.root import Config, load_tree
from trainer.training.sharded_model import build_unsharded_model

PAGE, PUBLISHED = ROOT / "docs" / "explanation" / "published_runs.md", ROOT / "docs" / "published.json"
MLPERF = ROOT / "docs" / "guides" / "which_cluster.md"
SYSTEM_OF = {"mlperf": "hugectr", "torchrec_dlrm": "torchrec", "dlrmv4": "torchrec"}
LONG_HISTORIES = "dlrmv4"
# Criteo's tables, as in torchrec_dlrm's README, with one id each. The README's runs are of early 2022, when PyTorch
# still computed fp32 products in TF32 by default.
TORCHREC_ROWS = (
    *(45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209, 11267, 128, 4, 974),
    *(14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35),
)
TORCHREC_DLRM: dict[str, Any] = {
    "data": {
        "train": ["data/criteo"],
        "dense": {f"int_{number}": {} for number in range(13)},
        "sparse": {f"cat_{number}": {"rows": rows} for number, rows in enumerate(TORCHREC_ROWS)},
    },
    "model": {"embedding_dim": 128, "dense_layers": [512, 256], "over_layers": [1024, 1024, 512, 256]},
    "optimizer": {"sparse": {"name": "sgd"}, "dense": {"name": "sgd"}},
    "train": {"epochs": 1, "tf32": True},
}


@dataclass(frozen=True, kw_only=True)
class Run:
    """A published run.

    Attributes:
        benchmark: The benchmark.
        by: Who published it.
        hosts: Number of hosts.
        on: The cluster of the forecast.
        batch: Global batch size.
        samples_per_second: Published rate.
        is_fitted: Whether constants are fitted to the run.
    """

    benchmark: str
    by: str
    hosts: str
    on: str
    batch: int
    samples_per_second: float
    is_fitted: bool

    @property
    def system(self) -> str:
        """The system, as in planner.system."""
        return SYSTEM_OF[self.benchmark]

    @property
    def milliseconds(self) -> float:
        """The time of a step."""
        return 1000 * self.batch / self.samples_per_second


def published() -> list[Run]:
    """Returns the published runs of DLRMs; constants are fitted to the first, third and so on of each benchmark."""
    return [
        Run(benchmark=benchmark, is_fitted=number % 2 == 0, **run)
        for benchmark, runs in json.loads(PUBLISHED.read_text()).items()
        for number, run in enumerate(runs)
        if benchmark != LONG_HISTORIES
    ]


def published_long() -> list[Run]:
    """Returns the published runs of DLRMv4, to which nothing is fitted."""
    runs = json.loads(PUBLISHED.read_text())[LONG_HISTORIES]
    return [Run(benchmark=LONG_HISTORIES, is_fitted=False, **run) for run in runs]


def forecast(run: Run, system: str | None = None) -> StepTime:
    """Returns the forecast of a run's step, by its system or another; `tools.plan --on` prints the same."""
    tree = TREES[run.benchmark]()
    data, planner = tree["data"] | {"global_batch_size": run.batch}, {"system": system or run.system}
    config = Config.model_validate(tree | {"data": data, "planner": planner})
    model = build_unsharded_model(config, torch.device("meta"))
    return plan_on(model, config, parse_cluster(run.on)).step


def mlperf() -> dict[str, Any]:
    """Returns the configuration of MLPerf's benchmark."""
    return tomllib.loads(mlperf_file())


TREES = {"mlperf": mlperf, "torchrec_dlrm": lambda: TORCHREC_DLRM, LONG_HISTORIES: lambda: load_tree("dlrmv4")}
"""The configurations of the benchmarks."""


def mlperf_file() -> str:
    """Returns the text that readers of the documentation save as mlperf.toml."""
    (text,) = re.findall(r"^```toml\n(# mlperf\.toml\n.*?)^```$", MLPERF.read_text(), re.MULTILINE | re.DOTALL)
    return text


def fit(runs: Sequence[Run], steps: Sequence[StepTime]) -> tuple[float, dict[str, float]]:
    """Returns the constants with the least squares of relative errors over the fitted runs.

    A step is the sum of the time at the data sheets' rates over the reached fraction, the latency of exchanges, and
    the extra time of the system. The sum is linear in the constants, and in the inverse of the fraction.

    Args:
        runs: The runs.
        steps: The forecasts.

    Returns:
        The reached fraction of the data sheets' rates, and the extra milliseconds of each system.
    """
    pairs = [(run, step) for run, step in zip(runs, steps, strict=True) if run.is_fitted]
    at_data_sheet = [ACHIEVED * (step.total - step.latency - step.constant) for _, step in pairs]
    takes_more = [[float(run.system == system) for system in SYSTEMS] for run, _ in pairs]
    measured = np.array([run.milliseconds for run, _ in pairs])
    latency = np.array([step.latency for _, step in pairs])
    unknown = np.column_stack([at_data_sheet, takes_more]) / measured[:, None]
    inverse, *more = np.linalg.lstsq(unknown, 1 - latency / measured)[0]
    return 1 / float(inverse), dict(zip(SYSTEMS, map(float, more), strict=True))


def error(run: Run, step: StepTime) -> float:
    """Returns the error of the forecast samples per second, relative to the published."""
    return run.milliseconds / step.total - 1


def render(runs: Sequence[Run], steps: Sequence[StepTime]) -> str:
    """Returns the table of published and forecast runs, and a summary."""
    rows = [
        [
            f"{run.by}: {run.hosts}",
            SYSTEMS[run.system].name,
            f"{parse_cluster(run.on).ranks}",
            f"`{run.on}`",
            f"{run.batch:,}",
            f"{run.samples_per_second / 1e6:.3g} M",
            f"{run.batch / step.total / 1000:.3g} M",
            f"{error(run, step):+.0%}",
            "fitted" if run.is_fitted else "held out",
        ]
        for run, step in zip(runs, steps, strict=True)
    ]
    headers = ["Run", "System", "GPUs", "`--on`", "Global batch", "Published", "Forecast", "Error", "Constants"]
    held_out = {
        "all of them": [not run.is_fitted for run in runs],
        "HugeCTR's": [not run.is_fitted and run.system == "hugectr" for run in runs],
    }
    medians = [f"{_median_error(runs, steps, which):.0%} over {name}" for name, which in held_out.items()]
    fitted = _median_error(runs, steps, [run.is_fitted for run in runs])
    return (
        f"{table(headers, rows)}\n\nSamples per second. The median error of the runs that were held out is "
        f"{', '.join(medians)}; of those that were fitted, {fitted:.0%}."
    )


def render_long(runs: Sequence[Run]) -> str:
    """Returns the table of published runs of DLRMv4, forecast for this trainer and with all kernels fused."""
    rows = []
    for run in runs:
        steps = [forecast(run, system) for system in SYSTEMS]
        each = [
            text for step in steps for text in (f"{1000 * run.batch / step.total:,.0f}", f"{error(run, step):+.0%}")
        ]
        rows.append([f"{run.by}: {run.hosts}", f"`{run.on}`", f"{run.batch:,}", f"{run.samples_per_second:,}", *each])
    headers = ["Run", "`--on`", "Global batch", "Published", "Forecast", "Error", "Forecast, fused", "Error"]
    return f"{table(headers, rows)}\n\nSamples per second."


def _median_error(runs: Sequence[Run], steps: Sequence[StepTime], which: Sequence[bool]) -> float:
    return statistics.median(
        abs(error(run, step)) for run, step, is_one in zip(runs, steps, which, strict=True) if is_one
    )


def main() -> None:
    """Rewrites the table, and prints the fitted constants."""
    runs = published()
    steps = [forecast(run) for run in runs]
    write_measured(PAGE, "published", render(runs, steps))
    write_measured(PAGE, "published long", render_long(published_long()))
    achieved, more = fit(runs, steps)
    print(f"fitted: ACHIEVED {achieved:.2f}, milliseconds {', '.join(f'{more[name]:.1f} {name}' for name in more)}")
    print(f"in use: ACHIEVED {ACHIEVED}, milliseconds {', '.join(f'{SYSTEMS[n].milliseconds} {n}' for n in SYSTEMS)}")


if __name__ == "__main__":
    main()
