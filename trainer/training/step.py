"""One optimizer step."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist

from trainer.core.distributed import DistributedContext
from trainer.data.batch import Batch
from trainer.training.sharded_model import ShardedModel


class TrainingStep(TrainPipelineSparseDist[Batch, Any]):
    """One optimizer step: set rates, forward, backward, update.

    TorchRec's pipeline calls the methods below in their order, and overlaps them with the input distribution of the
    next batch. This class alone knows the parts of a step: loss scaling and accumulation belong into `_backward`,
    clipping before the update in `_optimizer_step`, weight averaging after it.

    Of TorchRec's pipelines this one gives the losses of a plain loop and works on a CPU. SemiSync trains on stale
    embeddings, FusedSparseDist needs CUDA, and Prefetch a cache in front of tables in host memory.

    Args:
        model: The sharded model.
        context: This process among the ranks.
    """

    def __init__(self, model: ShardedModel, context: DistributedContext) -> None:
        super().__init__(model.model, model.optimizers.combined, context.device)
        self._optimizers = model.optimizers

    def take(self, step: int, batches: Iterator[Batch]) -> Tensor:
        """Takes a step on the next batch and returns its loss, a detached scalar, to be averaged over ranks.

        Args:
            step: Its number; the first is 1.
            batches: This rank's batches; up to two beyond this step's are taken from it, to be distributed ahead.
        """
        # Before `progress`, which begins with zero_grad: fused kernels get their rates there.
        self._optimizers.set_rates(step)
        loss, *_ = self.progress(batches)
        return loss

    def _backward(self, losses: Tensor) -> None:
        """Computes gradients; the tables are updated inside, by their fused optimizers."""
        losses.backward()

    def _optimizer_step(self) -> None:
        """Updates the dense part and the replicated tables."""
        self._optimizers.combined.step()
