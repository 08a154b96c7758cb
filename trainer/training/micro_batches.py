"""Microbatches: the dense part computes a local batch in slices, whose gradients add up to the gradient of the batch.

The tables look the whole batch up once and are updated once, because FBGEMM cannot accumulate gradients. TorchRec's
GradientAccumulationWrapper updates tables after each slice, which gives other weights with any optimizer but SGD.
"""

from collections.abc import Callable
from contextlib import nullcontext

from torch import Tensor
from torchrec.distributed.model_parallel import DistributedModelParallel

from torchx_recsys.planner.step_time import BACKWARD
from trainer.batches.batch import Batch
from trainer.core.console import plural
from trainer.core.errors import InputError
from trainer.data.epoch_order import Lanes, divides
from trainer.models.base import BatchOutputs
from trainer.run.step_clock import named_range
from trainer.training.cut import Cut
from trainer.training.loss_scale import LossScale


def check_micro_batches(micro_batches: int, lanes: Lanes, world_size: int) -> None:
    """Refuses a number of microbatches that does not divide a local batch at the borders of lanes, or lanes evenly.

    Microbatches must cut a local batch as more ranks would cut it.

    Raises:
        InputError: A microbatch would cut a sample, or take slices of several lanes.
    """
    batch, local = lanes.global_batch_size, lanes.global_batch_size // world_size
    if divides(lanes.lanes, world_size * micro_batches, batch):
        return
    allowed = [n for n in range(1, local + 1) if divides(lanes.lanes, world_size * n, batch)]
    raise InputError(
        f"train.micro_batches is {micro_batches}, which cannot cut a rank's {plural(local, 'sample')} "
        f"(data.global_batch_size {batch} / {plural(world_size, 'rank')}) at the borders of "
        f"{plural(lanes.lanes, 'lane')} or into equal parts of a lane; use one "
        f"of {', '.join(map(str, allowed[:8]))}{', ...' if len(allowed) > 8 else ''}"
    )


def forward_in_slices(
    model: DistributedModelParallel,
    cut: Cut,
    micro_batches: list[Batch],
    loss_scale: LossScale,
    begin: Callable[[Batch], None],
) -> tuple[Tensor, list[BatchOutputs]]:
    """Computes the losses slice by slice, and the gradients of all microbatches but the last.

    Args:
        model: The model.
        cut: The cut, which gives the model a slice of the embeddings at each call.
        micro_batches: The local batch in slices.
        loss_scale: Scales the losses before backward.
        begin: Called with each slice before it is computed.

    Returns:
        The loss of the last microbatch, whose backward the caller runs, and the outputs of all, detached.
    """
    cut.slice_next_batch(len(micro_batches))
    *others, last = micro_batches
    found = []
    # On a GPU, DistributedDataParallel averages over the ranks, and only at the last microbatch. A single rank has no
    # such wrapper, and neither has a model without dense parameters.
    with getattr(model._dmp_wrapped_module, "no_sync", nullcontext)():
        for micro_batch in others:
            begin(micro_batch)
            loss, outputs = model(micro_batch)
            with named_range(BACKWARD):
                loss_scale.scale(loss).backward()
            found.append(outputs)
    begin(last)
    loss, outputs = model(last)
    return loss, [*found, outputs]
