"""`python -m trainer plan`: sharding plans for this machine, or for clusters that need not be there."""

import json

import torch
from torch import nn
from torchrec.distributed.types import ShardingPlan

from apps.plan.compare import compare
from apps.plan.find import Found, find_clusters, render_found
from apps.plan.page import draw_page, draw_png
from apps.plan.prices import read_prices
from apps.plan.run import compare_with_plan
from apps.plan.text import render, shortage
from apps.plan.vary import effects_of
from planner.hardware import Cluster
from planner.planned import Planned
from trainer.config.root import Config
from trainer.core.console import next_commands, plural
from trainer.core.distributed import current_context
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import refuse_existing, write_file
from trainer.models.embeddings import table_shapes
from trainer.optim.table_optimizers import check_table_optimizers
from trainer.plan.cluster import cluster_of, parse_cluster
from trainer.plan.communication import check_comms
from trainer.plan.make_plan import plan_for
from trainer.plan.plan_file import plan_to_json
from trainer.plan.problem import plan_on
from trainer.plan.report import render_plan
from trainer.plan.sharding_plan import to_sharding_plan
from trainer.plan.statistics import with_statistics
from trainer.training.sharded_model import build_unsharded_model, local_batch_sizes

DEFAULT_RANKS = 2
EXCLUDED = {
    "--on": ("--world-size",),
    "--find": ("--on", "--world-size", "--vary", "--page", "--png", "--out"),
    "--vary": ("--page", "--png", "--out"),
    "--run": ("--on", "--find", "--vary", "--world-size", "--png"),
}


def plan(
    config: Config | None = None,
    config_words: list[str] | None = None,
    world_size: int | None = None,
    on: list[str] | None = None,
    find: list[str] | None = None,
    prices: str | None = None,
    vary: list[str] | None = None,
    run: str | None = None,
    page: str | None = None,
    png: str | None = None,
    out: str | None = None,
    overwrite: bool = False,
) -> None:
    """Plans for this machine, or for clusters that need not be there. CONFIG is a TOML file or a name.

    Neither a GPU nor a process group nor data are needed.

    Args:
        config: The configuration; --run can do without.
        config_words: The configuration and its overrides as typed.
        world_size: Ranks to plan for: on this machine, or on as many of planner.hardware as they need. Unset: 2.
        on: Clusters to plan for, HOST:NODES with a host of docs/resources.md, such as h100:8; several are compared.
        find: Hosts to find the cheapest and smallest cluster of that fits, by name, or all with a price and GPUs.
        prices: A price file to find by, any fsspec URL. Unset: the one that comes with the trainer, on-demand prices.
        vary: What to change, one thing at a time, to see what it saves: batch, dimension, precision, comms, hotness,
            tables, or all.
        run: A finished run, any fsspec URL: its plan, and what the planner forecasts of it beside what it measured.
        page: An HTML file to draw the plan to, and clusters beside each other, any fsspec URL; a browser opens it.
        png: An image to draw the same to, .png, any fsspec URL.
        out: Where to save the plan.json, any fsspec URL; planner.plan takes it. With --run: the numbers, as JSON.
        overwrite: Replace files that exist.

    Raises:
        InputError: The model cannot be built or planned as configured, the tables fit no cluster, or a file cannot be
            read or written.
    """
    given = {
        "--on": on,
        "--find": find,
        "--vary": vary,
        "--run": run,
        "--world-size": world_size,
        "--page": page,
        "--png": png,
        "--out": out,
    }
    for flag, value in given.items():
        if value == "":
            raise InputError(f"{flag} is empty; name a file, any fsspec URL, or leave it out")
        for one in value if isinstance(value, list) else ():
            if "," in one:
                raise InputError(f"{flag} is '{one}'; put spaces between several: {flag} {one.replace(',', ' ')}")
    flags = {flag for flag, value in given.items() if value is not None}
    _check_flags(flags, prices)
    if png and not png.endswith(".png"):
        raise InputError(f"--png is '{png}', but only .png can be drawn; give it that ending, or use --page for HTML")
    refuse_existing({"--page": page, "--png": png, "--out": out}, overwrite)
    if run:
        print(compare_with_plan(run, config, page, out))
        return
    if config is None or config_words is None:
        raise InputError("which configuration? plan CONFIG ..., with a TOML file or the name of a ready-made one")
    _check_planner(flags, config)
    config = with_statistics(config)
    model = build_unsharded_model(config, torch.device("meta"))
    if find is not None:
        of_hosts = read_prices(prices)
        found = find_clusters(model, config, find, of_hosts)
        print(f"{render_found(found, of_hosts)}\n\n{_next_of(found, config_words)}")
        return
    clusters = _clusters(config, world_size, on)
    for device_type in sorted({cluster.device_type for cluster in clusters}):
        check_table_optimizers(config, device_type)
    if len(clusters) > 1 and (vary or out):
        raise InputError(
            f"--on names {len(clusters)} clusters, but {'--vary' if vary else '--out'} takes one; name one"
        )
    if vary is not None:
        print(effects_of(config, clusters[0], vary))
    elif config.planner.engine == "torchrec":
        _plan_by_torchrec(config, model, clusters[0], out)
    else:
        _plan([plan_on(model, config, cluster) for cluster in clusters], model, config, config_words, page, png, out)


def _check_flags(given: set[str], prices: str | None) -> None:
    """Refuses flags that exclude each other.

    Raises:
        InputError: The message names both.
    """
    for flag, others in EXCLUDED.items():
        for other in others if flag in given else ():
            if other in given:
                raise InputError(f"{other} cannot be given with {flag}; leave one of them out")
    if prices and "--find" not in given:
        raise InputError(f"--prices is '{prices}', but only --find uses prices; add --find all")


def _check_planner(given: set[str], config: Config) -> None:
    """Refuses flags that the planner's section excludes.

    Raises:
        InputError: The message names both.
    """
    for key in ("plan", "hardware") if "--find" in given else ():
        if value := getattr(config.planner, key):
            raise InputError(f"planner.{key} is '{value}', but --find plans for many clusters; leave one of them out")
    for flag in ("--on", "--find", "--vary", "--page", "--png"):
        if config.planner.engine == "torchrec" and flag in given:
            raise InputError(f"planner.engine is 'torchrec', whose plans have no bound; {flag} takes 'search'")


def _plan(
    planned: list[Planned],
    model: nn.Module,
    config: Config,
    config_words: list[str],
    page: str | None,
    png: str | None,
    out: str | None,
) -> None:
    """Prints plans, and draws and saves them."""
    if not any(one.fits for one in planned):
        raise InputError("; ".join(f"{one.cluster} does not fit: {shortage(one)}" for one in planned))
    if page:
        write_file("--page", page, draw_page(planned))
    if png:
        write_file("--png", png, draw_png(planned))
    if len(planned) > 1:
        print(compare(planned))
        return
    cluster, found = planned[0].cluster, to_sharding_plan(planned[0].found, planned[0].tables, model)
    check_comms(config.comms, found, config.data, local_batch_sizes(config, cluster.ranks))
    print(render(planned[0]))
    print(f"\n{_next(planned[0], config_words, out)}")
    _write_plan(out, found, model, cluster)


def _clusters(config: Config, world_size: int | None, on: list[str] | None) -> list[Cluster]:
    """Returns the clusters that flags name."""
    if on is None:
        ranks = DEFAULT_RANKS if world_size is None else world_size
        return [cluster_of(config.planner.hardware, ranks, current_context().device.type)]
    if not on:
        raise InputError("--on names no cluster; write HOST:NODES, such as h100:8")
    if config.planner.hardware:
        raise InputError(
            f"planner.hardware is '{config.planner.hardware}' and --on is '{' '.join(on)}', which names the host, too; "
            "use one"
        )
    return [parse_cluster(one) for one in on]


def _next(planned: Planned, config_words: list[str], out: str | None) -> str:
    """Returns the command to type next."""
    cluster, (name, *overrides) = planned.cluster, config_words
    host = ["-h", cluster.name] if cluster.name else []
    flags = [*overrides, *(["--planner.plan", out] if out else [])]
    words = ["torchx", "run", "dlrm.multi_node", "--config", name, "-j", cluster.shape, *host, "--out", "runs/planned"]
    return next_commands([*words, *(["--", *flags] if flags else [])])


def _next_of(found: Found, config_words: list[str]) -> str:
    """Returns the command that tells what is where, and why, on the cluster that was found."""
    cluster = str(found.best["cheapest"][0].cluster)
    return next_commands(["python", "-m", "trainer", "plan", *config_words, "--on", cluster])


def _plan_by_torchrec(config: Config, model: nn.Module, cluster: Cluster, out: str | None) -> None:
    """Prints TorchRec's plan, of which neither a bound nor prices of memory are known."""
    found, _ = plan_for(model, config, cluster)
    check_comms(config.comms, found, config.data, local_batch_sizes(config, cluster.ranks))
    print(render_plan(found, model, cluster.ranks))
    _write_plan(out, found, model, cluster)


def _write_plan(out: str | None, found: ShardingPlan, model: nn.Module, cluster: Cluster) -> None:
    if out:
        text = json.dumps(plan_to_json(found, table_shapes(model), cluster.ranks), indent=2)
        write_file("--out", out, text)
        url = without_secrets(out)
        print(f"\nwritten to {url}; use it with --planner.plan {url} on {plural(cluster.ranks, 'rank')}")
