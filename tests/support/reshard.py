"""Restores checkpoints under other plans without a step in between, for tests that compare them."""

import json

import torch.distributed.checkpoint as dcp
from ranks import run_on_ranks
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from trainer.checkpoint.io import ChecksumWriter
from trainer.checkpoint.restore import restore
from trainer.checkpoint.saver import Staging
from trainer.checkpoint.store import Checkpoint, Checkpoints
from trainer.config.root import Config
from trainer.core.console import quiet_libraries
from trainer.core.distributed import DistributedContext, broadcast_from_rank0, gather_to_all, process_group
from trainer.core.run_directory import RunDirectory
from trainer.training.epochs import plan_epochs
from trainer.training.sharded_model import ShardedModel, build_sharded_model


def initialized_model(config: Config, context: DistributedContext) -> ShardedModel:
    order = plan_epochs(config, None, context)
    model = build_sharded_model(config, context, order.lanes)
    model.optimizers.create_dense_state()
    return model


def move(start: Checkpoint, model: ShardedModel, out: str, context: DistributedContext) -> None:
    tensors = model.tensors()
    restore(start, tensors, context)
    checkpoints = Checkpoints(RunDirectory(out))
    broadcast_from_rank0(context, lambda: checkpoints.begin(start.step))
    writer = ChecksumWriter(checkpoints.url(start.step))
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.save(Staging().copy(tensors), storage_writer=writer, planner=planner)
    entries = {name: entry for part in gather_to_all(writer.entries, context) for name, entry in part.items()}
    broadcast_from_rank0(
        context, lambda: checkpoints.commit(start.step, entries, {"state.json": json.dumps({"step": start.step})})
    )


def run_moves(tasks: list[dict]) -> None:
    quiet_libraries()
    with process_group() as context:
        for task in tasks:
            model = initialized_model(Config.model_validate(task["config"]), context)
            for before, after in task["moves"].items():
                start = broadcast_from_rank0(context, lambda before=before: Checkpoints(RunDirectory(before)).newest())
                move(start, model, after, context)


def run_rounds(rounds: list[tuple[int, list[dict]]]) -> None:
    """Restores checkpoints on forked ranks, on one number of them after another.

    Args:
        rounds: Numbers of ranks, each with a list of `{"config": {...}, "moves": {FROM: TO}}`: FROM is a run directory
            whose newest checkpoint is restored under the configuration's plan, TO where the state is then written, as
            another run's checkpoint of the same step.
    """
    for ranks, tasks in rounds:
        run_on_ranks(ranks, run_moves, tasks)
