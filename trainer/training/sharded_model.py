"""Builds the sharded model: makes the plan, shards the tables, attaches the optimizers.

Everything above this file handles a `ShardedModel`. It presents weights, optimizer state and averages as flat
dictionaries, under names that do not depend on the plan, which is what makes checkpoints fit any number of ranks.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

from trainer.checkpoint.state_dict import State, all_tensors, model_tensors
from trainer.config.root import Config, check_keys_of_tables
from trainer.core.distributed import DistributedContext
from trainer.core.run_directory import RunDirectory
from trainer.data.epoch_order import Lanes
from trainer.models.builder import build_model_with_loss
from trainer.models.embeddings import table_of_weight, table_shapes
from trainer.models.precision import DTYPES, allow_tf32
from trainer.models.tasks import ModelWithLoss
from trainer.optim.averages import Averages, check_kernels
from trainer.optim.dense_optimizers import freeze
from trainer.optim.optimizers import Optimizers
from trainer.optim.table_optimizers import check_table_optimizers, fuse
from trainer.plan.communication import check_comms, communication_volume
from trainer.plan.make_plan import check_planner, make_plan
from trainer.plan.plan_file import plan_to_json
from trainer.plan.sharding import allocating, shard, sharders
from trainer.plan.sharding_plan import render_plan, replicated_tables
from trainer.plan.tables import check_types, column_shards_in_words
from trainer.training.cut import Cut, CutSequences, CutTables, needs_cut
from trainer.training.extensions import found
from trainer.training.id_map import IdMap, make_id_map


@dataclass(frozen=True, kw_only=True)
class ShardedModel:
    """A model whose tables are spread over the ranks, with its optimizers and its plan.

    Attributes:
        model: The model with its loss.
        optimizers: The optimizers of the tables and of the dense part.
        cut: The cut between tables and dense part; false if the configuration does not need it.
        averages: The averages of the weights; None without optimizer.ema.decay.
        id_map: The rows of ids.
        plan: The placement of the tables.
        plan_json: The content of plan.json.
        planned_for: A digest of everything that decided the plan; empty if the plan was loaded.
        plan_table: The plan as a table to print.
        communication_bytes: Communication volume per step in bytes, by direction, and `fp32` for comparison.
    """

    model: DistributedModelParallel
    optimizers: Optimizers
    cut: Cut
    averages: Averages | None
    id_map: IdMap
    plan: ShardingPlan
    plan_json: dict[str, Any]
    planned_for: str
    plan_table: str
    communication_bytes: dict[str, float]

    def weights(self) -> State:
        """Returns the weights as views, by names in checkpoints."""
        return model_tensors(self.model)

    def frozen(self) -> set[str]:
        """Returns the names of the dense weights that no optimizer updates."""
        weights = {name: weight for name, weight in self.model.named_parameters() if table_of_weight(name) is None}
        return {f"model.{name}" for name, weight in weights.items() if not weight.requires_grad}

    def trained(self) -> State:
        """Returns weights, optimizer state and averages as views, by names in checkpoints."""
        averages = self.averages.tensors() if self.averages else {}
        return all_tensors(self.model, self.optimizers) | averages

    def tensors(self) -> State:
        """Returns all tensors of a checkpoint as views: those of `trained`, and the rows of ids."""
        return self.trained() | self.id_map.tensors()

    def restoring(self, saved: Mapping[str, Any]) -> State:
        """Returns the tensors to fill from a checkpoint of the same run, given the checkpoint's train state."""
        return self.trained() | self.id_map.restoring(saved)

    def restoring_evaluated(self, saved: Mapping[str, Any]) -> State:
        """Returns the tensors to fill for an evaluation, given the checkpoint's train state."""
        averages = self.averages.tensors() if self.averages and self.averages.evaluated else {}
        return self.weights() | averages | self.id_map.restoring(saved)

    def averaged(self) -> AbstractContextManager[None]:
        """Inside the block the weights are replaced by their averages, if the configuration evaluates averages."""
        return self.averages.swapped_in() if self.averages and self.averages.evaluated else nullcontext()


def build_unsharded_model(config: Config, device: torch.device, lanes: Lanes | None = None) -> ModelWithLoss:
    """Builds the model with its loss; the tables are on the meta device and marked for their fused optimizer.

    Args:
        config: The configuration.
        device: Device of the dense parameters.
        lanes: The lanes; None outside of training.

    Raises:
        InputError: Model, planner or optimizer cannot be used with this data or on this device.
    """
    check_table_optimizers(config, device.type)
    check_planner(config.data, config.planner)
    torch.manual_seed(config.train.seed)  # the dense part draws from it; tables get their values when they are sharded
    samples_per_lane = lanes.samples_per_step if lanes else 0
    model = build_model_with_loss(config, device, DTYPES[config.train.precision], samples_per_lane)
    check_keys_of_tables(config)
    freeze(model, config.optimizer.dense.frozen)
    fuse(model, config.optimizer)
    return model


def build_sharded_model(
    config: Config, context: DistributedContext, lanes: Lanes | None = None, run: RunDirectory | None = None
) -> ShardedModel:
    """Plans and shards the model, and attaches its optimizers.

    Args:
        config: The configuration.
        context: This process among the ranks.
        lanes: The lanes; None outside of training.
        run: A run that keeps its plan unless something that decides the plan has changed.

    Raises:
        InputError: The model cannot be built, planned or sharded as configured.
    """
    allow_tf32(config.train, context.device)
    unsharded = build_unsharded_model(config, context.device, lanes)
    by_kind = sharders(config.comms, CutTables, CutSequences) if needs_cut(config) else sharders(config.comms)
    plan, remark, planned_for = make_plan(unsharded, config, context, run)
    check_types(plan, config)
    id_map = make_id_map(config, context, plan)
    batch_sizes = local_batch_sizes(config, context.world_size)
    check_comms(config.comms, plan, config.data, batch_sizes, context.device.type)
    # Computed first, because `shard` replaces the tables inside the unsharded model.
    shapes = table_shapes(unsharded)
    plan_json = plan_to_json(plan, shapes, context.world_size)
    remarks = "\n".join(filter(None, [remark, column_shards_in_words(plan, config)]))
    plan_table = f"{render_plan(plan, unsharded, context.world_size)}\n\n{remarks}".rstrip()
    communication_bytes = communication_volume(plan, unsharded, config.data, config.comms, context)
    if config.optimizer.ema.tables:
        check_kernels(plan)
    model = shard(unsharded, by_kind, plan, context, config.train.seed, config.model.init_of)
    for wrap in found(config, "wrap"):
        wrap(unsharded, context, config)
    with allocating(shapes, dict.fromkeys(shapes, torch.float32.itemsize)):
        averages = Averages(model, config.optimizer.ema) if config.optimizer.ema.decay else None
    cut = Cut(model)
    unsharded.losses.weighting.attach(lambda: cut.leaves)
    return ShardedModel(
        model=model,
        optimizers=Optimizers(model, replicated_tables(plan), config.optimizer, lanes.steps if lanes else 1),
        cut=cut,
        averages=averages,
        id_map=id_map,
        plan=plan,
        plan_json=plan_json,
        planned_for=planned_for,
        plan_table=plan_table,
        communication_bytes=communication_bytes,
    )


def local_batch_sizes(config: Config, world_size: int) -> tuple[int, int]:
    """Returns the sizes of a local batch, in training and in evaluation."""
    training = config.data.global_batch_size
    return training // world_size, (config.evaluate.global_batch_size or training) // world_size
