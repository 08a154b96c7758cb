"""Prints the sharding plan of a configuration, for this machine or for hardware that is not there."""

import json

import torch

from trainer.config.plan import PlannerConfig
from trainer.config.root import Config
from trainer.core.distributed import current_context
from trainer.core.errors import InputError
from trainer.core.secrets import without_secrets
from trainer.core.storage import named, open_storage
from trainer.models.embeddings import table_shapes
from trainer.optim.table_optimizers import check_table_optimizers
from trainer.plan.communication import check_comms
from trainer.plan.plan_file import plan_to_json
from trainer.plan.planner import plan_for
from trainer.plan.ranks import host_of
from trainer.plan.report import render_plan
from trainer.training.sharded_model import build_unsharded_model, local_batch_sizes


def _nodes(config: PlannerConfig, world_size: int) -> tuple[int, str]:
    """Returns the ranks on each node, and the device that each of them has, without asking a process group."""
    host = host_of(config)
    if host is None:
        return world_size, current_context().device.type
    on_each_node = min(world_size, host.gpus or world_size)
    if world_size % on_each_node:
        raise InputError(f"--world-size is {world_size}; on hosts of {host.gpus} GPUs it must be a multiple of that")
    return on_each_node, "cuda" if host.gpu else "cpu"


def print_plan(config: Config, world_size: int = 2, out: str | None = None) -> None:
    """Prints the sharding plan of a configuration. CONFIG is a TOML file, or the name of a ready-made one.

    Args:
        config: The configuration.
        world_size: Ranks to plan for: on this machine, or on as many of planner.hardware as they need.
        out: Where to save the plan.json, any fsspec URL; planner.plan takes it.

    Raises:
        InputError: The model cannot be built or planned as configured, or the plan not written.
    """
    if world_size < 1:
        raise InputError(f"--world-size is {world_size}; it must be at least 1")
    model = build_unsharded_model(config, torch.device("meta"))
    on_each_node, device_type = _nodes(config.planner, world_size)
    check_table_optimizers(config, device_type)
    plan, remark = plan_for(model, config, world_size, on_each_node, device_type)
    check_comms(config.comms, plan, config.data, local_batch_sizes(config, world_size))
    print(f"{render_plan(plan, model, world_size)}\n\n{remark}".rstrip())
    if out:
        with named("--out", out):
            fs, path = open_storage(out)
            fs.pipe_file(path, json.dumps(plan_to_json(plan, table_shapes(model), world_size), indent=2).encode())
        url = without_secrets(out)
        print(f"\nwritten to {url}; use it with --planner.plan {url} on {world_size} ranks")
