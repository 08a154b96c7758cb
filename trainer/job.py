"""From configuration to what a step needs: data, plan, sharded model, optimizers."""

import json
from dataclasses import dataclass
from typing import Any

import fsspec
import torch
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from trainer.comms import check_comms, exchanged_bytes
from trainer.config import Config
from trainer.data.batch import Batch
from trainer.distributed import Ranks, current_ranks
from trainer.models.model import build_model
from trainer.models.task import BinaryTask
from trainer.optimizers import Optimizers, check_sparse_optimizer, fuse
from trainer.plan_file import plan_to_json
from trainer.planning import PlannerConfig, check_planner, host_of, make_plan, plan_for, render_plan, replicated_tables
from trainer.sharding import Sharder, shard
from trainer.state import local_pieces, optimizer_tensors
from trainer.storage import named


@dataclass(frozen=True)
class Job:
    """A sharded model that can be trained.

    Attributes:
        model: The model with its loss.
        optimizers: What updates it.
        plan: Where its tables are.
        plan_json: The same, as plan.json holds it.
        plan_table: The same, for people.
        sent_bytes: Embedding bytes that ranks send one another per step, by direction, and `fp32` for comparison.
    """

    model: DistributedModelParallel
    optimizers: Optimizers
    plan: ShardingPlan
    plan_json: dict[str, Any]
    plan_table: str
    sent_bytes: dict[str, float]

    def rehearse(self, batch: Batch) -> None:
        """Makes every optimizer have its state, by a step that changes no weight; the state itself is zero again."""
        self.optimizers.stand_still()
        self.optimizers.combined.zero_grad()
        loss, _ = self.model(batch)
        loss.backward()
        self.optimizers.combined.step()
        for value in optimizer_tensors(self.optimizers).values():
            for piece in local_pieces(value):
                piece.zero_()


def build_task(config: Config, device: torch.device) -> BinaryTask:
    """Builds the model with its loss, the tables on the meta device, their optimizer fused.

    Raises:
        ValueError: Model, planner or optimizer cannot be used with this data or on this device.
    """
    check_sparse_optimizer(config.optimizer.sparse, device.type)
    check_planner(config.data, config.planner, config.optimizer.sparse.name)
    torch.manual_seed(config.train.seed)
    task = BinaryTask(build_model(config.data, config.model, device), device.type, config.train.precision == "bf16")
    fuse(_tables(task), config.optimizer.sparse)
    return task


def _tables(model: nn.Module) -> EmbeddingBagCollection:
    return next(module for module in model.modules() if isinstance(module, EmbeddingBagCollection))


def build_job(config: Config, ranks: Ranks) -> Job:
    """Plans and shards the model.

    Raises:
        ValueError: The model cannot be built, planned or sharded as configured.
    """
    task, sharder = build_task(config, ranks.device), Sharder(config.comms)
    plan = make_plan(task, sharder, config.data, config.planner, ranks)
    check_comms(config.comms, plan, _batch_rows(config, ranks.world_size))
    plan_json = plan_to_json(plan, ranks.world_size)
    plan_table = render_plan(plan, task, ranks.world_size)
    sent_bytes = exchanged_bytes(plan, task, config.data, config.comms, ranks)
    model = shard(task, sharder, plan, ranks, config.train.seed)
    optimizers = Optimizers(model, replicated_tables(plan), config.optimizer)
    return Job(model, optimizers, plan, plan_json, plan_table, sent_bytes)


def _batch_rows(config: Config, world_size: int) -> tuple[int, int]:
    """Returns the rows of a rank's batch in training and in evaluation."""
    training = config.data.global_batch_size
    return training // world_size, (config.evaluate.global_batch_size or training) // world_size


def _nodes(config: PlannerConfig, world_size: int) -> tuple[int, str]:
    """Returns the ranks on each node, and the device that each of them has, without asking a process group."""
    host = host_of(config)
    if host is None:
        return world_size, current_ranks().device.type
    on_each_node = min(world_size, host.gpus or world_size)
    if world_size % on_each_node:
        raise ValueError(f"--world-size is {world_size}; on hosts of {host.gpus} GPUs it must be a multiple of that")
    return on_each_node, "cuda" if host.gpu else "cpu"


def print_plan(config: Config, world_size: int, out: str | None) -> None:
    """Prints the plan for a number of ranks on this machine or on other hardware, and saves it if asked to.

    Args:
        config: The configuration.
        world_size: Ranks to plan for.
        out: Where to write the plan.json, any fsspec URL; None for nowhere.

    Raises:
        ValueError: The model cannot be built or planned as configured, or the plan not written.
    """
    task = build_task(config, torch.device("meta"))
    on_each_node, device_type = _nodes(config.planner, world_size)
    check_sparse_optimizer(config.optimizer.sparse, device_type)
    plan = plan_for(task, Sharder(config.comms), config.data, config.planner, world_size, on_each_node, device_type)
    check_comms(config.comms, plan, _batch_rows(config, world_size))
    print(render_plan(plan, task, world_size))
    if out:
        with named("--out", out), fsspec.open(out, "w") as file:
            json.dump(plan_to_json(plan, world_size), file, indent=2)  # pyrefly: ignore
        print(f"\nwritten to {out}; use it with --planner.plan {out} on {world_size} ranks")
