"""`python -m trainer plan --run`: the planner's forecast of a run beside the run's measurements."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tabulate import tabulate
from torch import nn

from torchx_recsys.apps.plan.page import draw_page
from torchx_recsys.apps.plan.planning import plan_on
from torchx_recsys.planner.hardware import GIB, Cluster
from torchx_recsys.planner.rank_memory import RankMemory
from torchx_recsys.planner.step_time import BACKWARD, EXCHANGE, FORWARD, INPUT, OTHER, PARTS, UPDATE, StepTime
from trainer.config.root import Config, load_config
from trainer.core.errors import InputError
from trainer.core.run_directory import RunDirectory
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, write_file
from trainer.models.embeddings import table_shapes
from trainer.pages.figures import Figure, Lying
from trainer.pages.html import draw_figures
from trainer.plan.make_plan import problem_of
from trainer.plan.measurements import with_statistics
from trainer.plan.plan_file import load_plan
from trainer.plan.sharding_plan import memory_of_plan, time_of_plan
from trainer.training.cut import needs_cut
from trainer.training.sharded_model import build_unsharded_model

Facts = dict[str, Any]
KEY = "--run"
FORWARD_OF_DENSE = 1 / 3  # forward's share of the dense part's products; backward takes twice as many
# Runs of earlier versions measured all updates as part of backward.
EARLIER_PARTS = {
    "wait for data": INPUT,
    "exchange of ids": EXCHANGE,
    "forward": FORWARD,
    "backward and updates": BACKWARD,
    "anything else": OTHER,
}


@dataclass(frozen=True)
class Run:
    """A run, from the files in its directory.

    Attributes:
        url: URL of the run directory.
        config: Its configuration; planner.plan is the run's plan.json.
        cluster: The cluster of the run.
        measured: Its measurements: `step_ms`, `parts`, `memory_bytes` of each rank.
    """

    url: str
    config: Config
    cluster: Cluster
    measured: Facts


def compare_with_plan(url: str, config: Config | None, page: str | None, out: str | None) -> str:
    """Returns a table of the planner's forecast and the run's measurements.

    Args:
        url: The run directory, any fsspec URL.
        config: The configuration to plan by; None for the run's own.
        page: An HTML file to draw both to.
        out: A file to write both to, as JSON.

    Raises:
        InputError: There is no such run, it has not measured a step, or it cannot be planned for here.
    """
    run = read_run(url, config)
    both, model = {"measured": run.measured}, build_unsharded_model(run.config, torch.device("meta"))
    if forecast := forecast_of(run, model):
        both = {"forecast": forecast, **both}
    if page:
        write_file("--page", page, _page(run, model, compared(both)))
    if out:
        write_file("--out", out, json.dumps(both, indent=2))
    return "\n\n".join([f"run {without_secrets(url)}", *_tables(both), *_remarks(run, both)])


def read_run(url: str, config: Config | None = None) -> Run:
    """Returns a run with its measurements.

    Raises:
        InputError: There is no such run, or it has not measured a step.
    """
    directory, shown = RunDirectory(url, KEY), without_secrets(url)
    with named(KEY, url):
        for name in ("run.json", "config.toml", "plan.json"):
            if directory.read_bytes(name) is None:
                raise InputError(f"{KEY} is '{shown}', which holds no {name}; name the directory of a run")
        facts = directory.read_json("run.json") or {}
    if "measured" not in facts:
        raise InputError(
            f"{KEY} is '{shown}', which has not measured its steps: a run does so when it is finished, and this one is "
            f"{facts.get('state', 'not begun')}; let it finish, or name another"
        )
    lacks = [name for name in ("device", "world_size", "local_world_size") if name not in facts]
    lacks += [f"measured.{name}" for name in ("step_ms", "parts", "memory_bytes") if name not in facts["measured"]]
    if lacks:
        raise InputError(f"{KEY} is '{shown}', whose run.json is damaged: it lacks '{lacks[0]}'; name another run")
    config = with_statistics(config or load_config(directory.url_of("config.toml")))
    on_gpu, per_host = facts["device"] == "cuda", facts["local_world_size"]
    changes: Facts = {"plan": directory.url_of("plan.json")}
    planner = config.planner
    if not planner.hardware:  # uses the memory of the run's ranks instead of this machine's
        changes |= {key: size for key, size in facts.get("rank_memory", {}).items() if getattr(planner, key) is None}
    planner = planner.model_copy(update=changes)
    if on_gpu and not (planner.hardware or planner.memory_gib) and not torch.cuda.is_available():
        raise InputError(
            f"{KEY} is '{shown}', a run on GPUs that does not record their memory; name it in planner.memory_gib, or "
            f"the hosts in planner.hardware: plan {shown}/config.toml {KEY} {shown} --planner.memory-gib 79"
        )
    cluster = Cluster(planner.hardware, facts["world_size"] // per_host, per_host, on_gpu)
    return Run(url, config.model_copy(update={"planner": planner}), cluster, _in_todays_words(facts["measured"]))


def _in_todays_words(measured: Facts) -> Facts:
    return measured | {"parts": {EARLIER_PARTS.get(name, name): time for name, time in measured["parts"].items()}}


def forecast_of(run: Run, model: nn.Module) -> Facts:
    """Returns the forecast of a run's plan under the names of the measurements; empty if there is none.

    The time of a step is forecast by measured speeds or, on GPUs, by data sheets; a CPU's usual speeds only serve to
    compare plans. Memory is forecast on GPUs: a CPU process also holds libraries and the loader's windows, which are
    not counted.

    Raises:
        InputError: The plan or the speeds cannot be read.
    """
    config, cluster = run.config, run.cluster
    if not (cluster.on_gpu or config.planner.calibration):
        return {}
    problem = problem_of(model, config, cluster)
    if problem.topology.system:  # TorchRec trained the run, whichever system planner.system names
        problem = replace(problem, topology=problem.of_systems["torchrec"])
    plan = load_plan(
        str(config.planner.plan), table_shapes(model), cluster.ranks, cluster.per_host, cluster.device_type
    )
    step = time_of_plan(plan, problem)
    memory = _bytes(memory_of_plan(plan, problem)) if cluster.on_gpu else {}
    # Fused optimizers update the tables inside backward, unless the step cuts it in two.
    tables = UPDATE if needs_cut(config) and UPDATE in run.measured["parts"] else BACKWARD
    return {"step_ms": step.total, "parts": _parts(step, tables), **memory, "figures": step.source}


def _parts(step: StepTime, tables: str) -> dict[str, float]:
    """Returns the milliseconds of a step's parts as a run measures them.

    A run measures parts by their beginning and end: embeddings are exchanged within forward, and gradients of the dense
    part within backward. `tables` is the part in which gradients go back to the tables.
    """
    part_of = {
        "input": EXCHANGE,
        "forward": FORWARD,
        "forward_comms": FORWARD,
        "backward_comms": tables,
        "backward": tables,
    }
    parts = dict.fromkeys(PARTS, 0.0)
    for phase, milliseconds in zip(step.phases, step.slowest, strict=True):
        parts[part_of[phase]] += float(milliseconds)
    parts[FORWARD] += FORWARD_OF_DENSE * step.dense
    parts[BACKWARD] += (1 - FORWARD_OF_DENSE) * step.dense
    parts[OTHER] += step.latency + step.constant
    return parts


def _bytes(memory: RankMemory) -> Facts:
    """Returns the GPU memory of every rank as runs measure it, and the fullest rank's memory by kind."""
    kinds = memory.by_kind()
    of_ranks = (memory.total - kinds["context"] - kinds["communication"])[:, 0]  # the allocator does not count these
    fullest = int(of_ranks.argmax())
    return {
        "memory_bytes": [round(size) for size in of_ranks],
        "memory_of_fullest_rank": {kind: round(size[fullest, 0]) for kind, size in kinds.items()},
    }


def _tables(both: Mapping[str, Facts]) -> Iterator[str]:
    for figure, of in zip(compared(both), ("ms of a step", "GiB of a rank", "GiB by kind"), strict=False):
        rows = zip(figure.names, *figure.series.values(), strict=True)
        yield tabulate(rows, [of, *figure.series], floatfmt=",.3f")


def _remarks(run: Run, both: Mapping[str, Facts]) -> Iterator[str]:
    if "forecast" in both:
        yield f"speeds of the forecast: {both['forecast']['figures']}"
    else:
        yield (
            "nothing is forecast, as the speeds of these CPUs were not measured; calibrate such a host and name the "
            "file in planner.calibration"
        )
    if UPDATE not in run.measured["parts"]:
        yield "this run was made by an earlier version: what it measured of backward includes the updates"


def compared(both: Mapping[str, Facts]) -> list[Lying]:
    """Returns figures of the forecast and the measurements.

    Args:
        both: `forecast`, which may be missing, and on a CPU has no memory; and `measured`.
    """
    names = [part for part in PARTS if part in both["measured"]["parts"]]
    times = {of: [one["step_ms"], *(one["parts"][name] for name in names)] for of, one in both.items()}
    memory = {
        of: [statistic(one["memory_bytes"]) / GIB for statistic in (max, np.mean, min)]
        for of, one in both.items()
        if "memory_bytes" in one
    }
    found = [
        Lying(
            " and ".join(both).capitalize(),
            "Medians of the rank with the longest steps. Forward includes the lookup and the exchange of embeddings, "
            "exchange that of ids. The input stall is not forecast.",
            "ms",
            ["step", *names],
            times,
        ),
        Lying(
            f"{' and '.join(memory).capitalize()} memory",
            "The peak.",
            "GiB",
            ["fullest rank", "mean", "emptiest rank"],
            memory,
        ),
    ]
    if "memory_of_fullest_rank" in both.get("forecast", {}):
        kinds = both["forecast"]["memory_of_fullest_rank"]
        sizes = {"forecast": [size / GIB for size in kinds.values()]}
        found.append(Lying("Forecast memory of the fullest rank", "By kind.", "GiB", [*kinds], sizes))
    return found


def _page(run: Run, model: nn.Module, figures: list[Lying]) -> str:
    """Returns the page of the plan; only the run's figures if the planner would not choose the plan."""
    drawn: list[Figure] = [*figures]
    try:
        return draw_page([plan_on(model, run.config, run.cluster)], drawn)
    except InputError as error:  # for example a plan made by hand
        return draw_figures(f"Run {without_secrets(run.url)}", without_secrets(error), drawn)
