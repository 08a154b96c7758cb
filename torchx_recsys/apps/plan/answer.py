"""Computes and prints the answers of `python -m trainer plan`; needs the model, and so torch."""

import json
from collections.abc import Sequence

import torch
from torch import nn
from torchrec.distributed.types import ShardingPlan

from torchx_recsys.apps.plan.clusters import cluster_of
from torchx_recsys.apps.plan.compare import compare
from torchx_recsys.apps.plan.find import Found, find_clusters, render_found
from torchx_recsys.apps.plan.page import draw_page, draw_png
from torchx_recsys.apps.plan.planning import plan_on
from torchx_recsys.apps.plan.prices import Prices
from torchx_recsys.apps.plan.text import render, shortage
from torchx_recsys.apps.plan.vary import effects_of
from torchx_recsys.planner.hardware import UNREGISTERED, Cluster
from torchx_recsys.planner.plan import Planned
from trainer.config.root import Config
from trainer.core.console import next_commands, plural
from trainer.core.distributed import current_context
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import write_file
from trainer.models.embeddings import table_shapes
from trainer.optim.table_optimizers import check_table_optimizers
from trainer.plan.communication import check_comms
from trainer.plan.plan_file import plan_to_json
from trainer.plan.sharding_plan import to_sharding_plan
from trainer.training.sharded_model import build_unsharded_model, local_batch_sizes

DEFAULT_RANKS = 2


def find(config: Config, config_words: list[str], hosts: Sequence[str], prices: Prices) -> None:
    """Prints the best clusters of given hosts.

    Raises:
        InputError: No cluster fits, or the tables cannot be sharded as allowed.
    """
    found = find_clusters(build_unsharded_model(config, torch.device("meta")), config, hosts, prices)
    print(f"{render_found(found, prices)}\n\n{_next_of(found, config_words)}")


def vary(config: Config, clusters: Sequence[Cluster] | None, world_size: int | None, kinds: Sequence[str]) -> None:
    """Prints the effects of changes to a configuration; clusters as in `plan`.

    Raises:
        InputError: The unchanged configuration does not fit, or there is no such change.
    """
    build_unsharded_model(config, torch.device("meta"))  # first, as it refuses a wrong configuration
    print(effects_of(config, _checked(config, clusters, world_size)[0], kinds))


def plan(
    config: Config,
    config_words: list[str],
    clusters: Sequence[Cluster] | None,
    world_size: int | None,
    page: str | None,
    png: str | None,
    out: str | None,
) -> None:
    """Prints plans for clusters, and draws and saves them.

    Args:
        config: The configuration.
        config_words: The configuration and its overrides as typed.
        clusters: The clusters; unset for `world_size` ranks of planner.hardware, or of this machine.
        world_size: Number of ranks; unset for 2.
        page: An HTML file to draw the plan to.
        png: An image to draw the plan to.
        out: Where to save the plan.json.

    Raises:
        InputError: The model cannot be planned, or a file cannot be written.
    """
    model = build_unsharded_model(config, torch.device("meta"))
    chosen = _checked(config, clusters, world_size)
    _show([plan_on(model, config, cluster) for cluster in chosen], model, config, config_words, page, png, out)


def _checked(config: Config, clusters: Sequence[Cluster] | None, world_size: int | None) -> Sequence[Cluster]:
    if clusters is None:
        ranks = DEFAULT_RANKS if world_size is None else world_size
        clusters = [cluster_of(config.planner.hardware, ranks, current_context().device.type)]
    for device_type in sorted({cluster.device_type for cluster in clusters}):
        check_table_optimizers(config, device_type)
    return clusters


def _show(
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
    batch_sizes = local_batch_sizes(config, cluster.ranks)
    check_comms(config.comms, found, config.data, batch_sizes, cluster.device_type)
    print(render(planned[0]))
    print(f"\n{_next(planned[0], config_words, out)}")
    _write_plan(out, found, model, cluster)


def _next(planned: Planned, config_words: list[str], out: str | None) -> str:
    """Returns the command to type next."""
    cluster, (name, *overrides) = planned.cluster, config_words
    host = ["--gpu", str(cluster.per_host)] if cluster.name in UNREGISTERED else []
    host = ["-h", cluster.name] if cluster.name and not host else host
    flags = [*overrides, *(["--planner.plan", out] if out else [])]
    words = ["torchx", "run", "dlrm.multi_node", "--config", name, "-j", cluster.shape, *host, "--out", "runs/planned"]
    return next_commands([*words, *(["--", *flags] if flags else [])])


def _next_of(found: Found, config_words: list[str]) -> str:
    """Returns the command that explains the plan for the cheapest cluster."""
    cluster = str(found.best["cheapest"][0].cluster)
    return next_commands(["python", "-m", "trainer", "plan", *config_words, "--on", cluster])


def _write_plan(out: str | None, found: ShardingPlan, model: nn.Module, cluster: Cluster) -> None:
    if out:
        text = json.dumps(plan_to_json(found, table_shapes(model), cluster.ranks), indent=2)
        write_file("--out", out, text)
        url = without_secrets(out)
        print(f"\nwritten to {url}; use it with --planner.plan {url} on {plural(cluster.ranks, 'rank')}")
