"""A training in one file: reads data, plans, shards, takes steps, saves, and resumes exactly.

    torchrun --nproc-per-node 2 loop.py mine.toml checkpoints

Beyond this, `python -m trainer train` writes a run directory, evaluates, watches, retries, and checks the user's input.
Your own loop has only the code in this file.
"""

import sys
from dataclasses import replace
from pathlib import Path

import torch.distributed.checkpoint as dcp

from torchx_recsys import gather_to_all
from trainer.config.root import Config, load_config
from trainer.core.distributed import DistributedContext, process_group
from trainer.training.epochs import EpochOrder, plan_epochs
from trainer.training.loss_scale import start_state
from trainer.training.sharded_model import ShardedModel, build_sharded_model
from trainer.training.step import TrainingStep

SAVE_EVERY_STEPS = 20


def main(file: str, folder: str) -> None:
    """Trains a model to the last step of its configuration.

    Args:
        file: The configuration, as for `python -m trainer train`.
        folder: Where checkpoints go; the newest one is resumed from.
    """
    config = load_config(file)
    # Joins the ranks that torchrun started: NCCL with GPUs, Gloo without. Without torchrun it is one rank.
    with process_group() as context:
        train(config, Path(folder), context)


def train(config: Config, folder: Path, context: DistributedContext) -> None:
    """Sets up training, and takes the remaining steps."""
    # Read data. Row groups are permuted and rows shuffled by the seed; the samples of a step depend on the step alone:
    # the position of a run is one number, on any number of ranks.
    order = plan_epochs(config, None, context)

    # Plan and shard. The model is built with its tables on the meta device, a plan places them on the ranks, and each
    # rank allocates its shards only. Table optimizers are fused into backward.
    model = build_sharded_model(config, context, order.lanes)
    model.optimizers.create_dense_state()  # so that a checkpoint has it from the first step on
    if context.is_rank0:
        print(model.plan_table, flush=True)

    order = replace(order, steps_done=resume(model, folder))
    take_steps(config, order, model, folder, context)


def take_steps(
    config: Config, order: EpochOrder, model: ShardedModel, folder: Path, context: DistributedContext
) -> None:
    """Takes the remaining steps, reports them, and saves now and then and at the end."""
    # One step: rates, forward, backward, all-reduce of the dense gradients, update. TorchRec's pipeline exchanges the
    # ids of the next batch while this one is computed. Subclass TrainingStep for a step of your own.
    step_of = TrainingStep(model, config, context, start_state(config.train, None), order.loader.locate)
    batches = order.batches()  # this rank's part of each global batch, made ahead by threads
    for step in range(order.steps_done + 1, order.last_step + 1):
        result = step_of.take(step, batches)
        # Each rank has the loss of its own samples. Reading it makes the processor wait; a real loop does so rarely.
        losses = gather_to_all(result.loss.item(), context)
        if context.is_rank0:
            print(f"step {step}: loss {sum(losses) / len(losses):.6f}", flush=True)
        if step % SAVE_EVERY_STEPS == 0 or step == order.last_step:
            save(model, folder, step)


def save(model: ShardedModel, folder: Path, step: int) -> None:
    """Saves weights and optimizers of all ranks, by torch's own checkpoints, which any plan can restore."""
    # A directory is a checkpoint only when it has `.metadata`, which torch writes last.
    dcp.save(model.tensors(), checkpoint_id=folder / f"step-{step:06d}")


def resume(model: ShardedModel, folder: Path) -> int:
    """Fills the model from the newest whole checkpoint; returns its step, 0 without any."""
    found = sorted(path.parent for path in folder.glob("step-*/.metadata"))
    if not found:
        return 0
    dcp.load(model.tensors(), checkpoint_id=found[-1])  # the tensors are views, filled in place
    return int(found[-1].name.removeprefix("step-"))


if __name__ == "__main__":
    main(*sys.argv[1:])
