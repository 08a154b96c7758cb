"""Compiles the dense part of a sharded model by torch.compile."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException
from torch._dynamo.types import GuardFilterEntry
from torch.func import functional_call, grad_and_value
from torchrec.distributed.types import ShardedModule
from torchrec.sparse.jagged_tensor import KeyedTensor

from trainer.batches.batch import Batch
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, gather_to_all
from trainer.core.errors import first_line
from trainer.models.base import BatchOutputs, Predictions
from trainer.models.normalization import BatchNorm
from trainer.models.recompute import is_recomputed
from trainer.models.tasks import ModelWithLoss
from trainer.plan.sharding import PooledTables

REPLAYED_BYTES = 256 * 2**20
"""Embeddings of a batch up to which a GPU replays its kernels, which begins with a copy of them.

On an H200, a DLRM took 2.4 ms in place of 4.0 with 104 MiB of them, as launching kernels one by one took longer than
they ran; with 832 MiB, 12.2 in place of 11.7, and 1.4 GiB more memory.
"""


def compile_dense_part(model: ModelWithLoss, context: DistributedContext, config: Config) -> None:
    """Has the dense part compiled at its first call, or reports why it cannot be.

    The tables stay outside: their kernels are compiled already, and their exchange has to overlap with other work.

    Args:
        model: The sharded model with its loss.
        context: This process among the ranks. All compile, or none.
        config: The configuration.
    """
    errors = gather_to_all(_error_of_compiler(context.device), context)
    if error := next(filter(None, errors), None):
        _say(f"train.compile is off, as this machine cannot compile: {error}", context)
        return
    if graph := _as_one_graph(model, context, config):
        _say("compiling the dense part, its loss and its gradients as one graph", context)
        model.with_gradients = graph
        return
    _say("compiling each network of the dense part", context)
    # Some weights go back through the networks once for each task, so backward may not give its buffers away.
    torch._functorch.config.donated_buffer = not model.losses.weighting.needs_gradients
    _compile_networks(model.model)


def _as_one_graph(model: ModelWithLoss, context: DistributedContext, config: Config) -> "LossWithGradients | None":
    """Returns the dense part as one graph, None if it cannot be one."""
    tables = [module for module in model.modules() if isinstance(module, ShardedModule)]
    # Several GPUs average the gradients of some layers while backward computes those of others.
    goes_along = context.device.type == "cpu" or context.world_size == 1
    if not (goes_along and model.losses.is_function and not config.train.scales_loss):
        return None
    if len(tables) != 1 or not isinstance(tables[0], PooledTables):
        return None
    # The one changes running means, the other computes in backward.
    if any(isinstance(module, BatchNorm) for module in model.modules()) or is_recomputed(model):
        return None
    # The same weights, and embeddings in place of the tables.
    same = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    try:
        dense_part = deepcopy(model, same | {id(tables[0]): _LookedUp(tables[0])})
    except TypeError:  # of a part of the user's own, such as a lock
        return None
    is_replayed = (
        context.device.type == "cuda"
        and config.train.micro_batches == 1  # or gradients are added up, and those of the first slice must stay
        and config.data.global_batch_size * sum(tables[0].dimensions) * torch.float32.itemsize <= REPLAYED_BYTES
    )
    return LossWithGradients(model, tables[0], dense_part, context, is_replayed)


class LossWithGradients:
    """The dense part with its loss and its gradients, compiled as one graph.

    If only networks are compiled, Python still calls the loss, and all that autograd puts between forward and backward:
    DeepFM on MovieLens in batches of 1,024 took 2.0 ms a step so, and 1.5 as one graph.

    Args:
        model: The sharded model with its loss.
        tables: Its only tables.
        dense_part: The model with the same weights, and embeddings in place of its tables.
        context: This process among the ranks.
        is_replayed: Whether a GPU records the kernels at the first calls and replays them from then on. What they write
            is then where it was at the call before.
    """

    def __init__(
        self,
        model: ModelWithLoss,
        tables: PooledTables,
        dense_part: ModelWithLoss,
        context: DistributedContext,
        is_replayed: bool,
    ) -> None:
        self._model, self._tables, self._context = model, tables, context
        trained = {name: weight for name, weight in dense_part.named_parameters() if weight.requires_grad}
        self._weights, self._is_first = [*trained.values()], True
        self._is_replayed = is_replayed
        if is_replayed:  # or each replay would begin with a copy of the weights
            for weight in self._weights:
                torch._dynamo.mark_static_address(weight)

        def loss_of(weights: list[Tensor], embeddings: Any, batch: Batch) -> tuple[Tensor, Predictions]:
            by_name = dict(zip(trained, weights, strict=True))
            loss, outputs = functional_call(dense_part, by_name, (replace(batch, sparse=embeddings),))
            return loss, outputs.predictions

        self._graph = torch.compile(  # pyrefly: ignore[no-matching-overload]
            grad_and_value(loss_of, argnums=(0, 1), has_aux=True),
            fullgraph=True,
            dynamic=True,  # as below
            options={"guard_filter_fn": _is_of_inputs, "triton.cudagraphs": is_replayed},
            isolate_recompiles=True,  # with these guards alone, another model could get this one's graph
        )

    def __call__(self, batch: Batch) -> tuple[Tensor, BatchOutputs]:
        """Computes the loss of the local batch and the model's outputs, and already the gradients for backward."""
        embeddings = self._tables(batch.sparse).values()
        if self._is_replayed:  # or the loss of the step before, which is still there, would keep its memory
            torch.compiler.cudagraph_mark_step_begin()
        try:
            with torch.no_grad():
                (of_weights, of_embeddings), (loss, predictions) = self._graph(self._weights, embeddings, batch)
        except TorchDynamoException as error:  # the user's own code may do what no graph can
            self._give_up(first_line(error))
            return self._model(batch)
        # A weight without a gradient may be one that the copy of the model cannot see, such as that of a lambda, or one
        # that no loss depends on, which eager torch would leave alone.
        if self._is_first and not all(gradient.any() for gradient in of_weights):
            self._give_up("a weight has no gradient")
        self._is_first = False
        outputs = BatchOutputs(loss, predictions, batch.labels, batch.weights, batch.groups)
        return _GradientsKnown.apply(loss, [*of_weights, of_embeddings], *self._weights, embeddings), outputs

    def _give_up(self, why: str) -> None:
        _say(f"compiling each network of the dense part, as one graph cannot hold it all: {why}", self._context)
        self._model.with_gradients = None
        _compile_networks(self._model.model)


class _LookedUp(nn.Module):
    """Stands for tables whose embeddings are in place of the ids."""

    def __init__(self, tables: PooledTables) -> None:
        super().__init__()
        self._features, self._dimensions = tables.features, tables.dimensions

    def forward(self, embeddings: Tensor) -> KeyedTensor:
        """Returns embeddings `[B, columns of all features]` in the form that the tables give them."""
        return KeyedTensor(self._features, self._dimensions, embeddings)


class _GradientsKnown(torch.autograd.Function):
    """A loss whose gradients are known before its backward, which takes them to where they belong."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: list[Tensor], *inputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        # The gradient of the loss itself is 1, as nothing comes after it. `ctx` gives the gradients away, so that the
        # weights take them without a copy.
        gradients, ctx.gradients = ctx.gradients, None
        return None, None, *gradients


def _is_of_inputs(guards: Sequence[GuardFilterEntry]) -> list[bool]:
    """Returns which conditions of a graph are checked at each call: those on tensors that differ from call to call."""
    # Torch would also check a thousand times that modules and Python's globals are what they were, 0.15 of 1.7 ms.
    kinds = ("TENSOR_MATCH", "SHAPE_ENV")
    return [guard.guard_type in kinds and not isinstance(guard.value, nn.Parameter) for guard in guards]


def _compile_networks(model: nn.Module) -> None:
    """Lets every network beside the tables be compiled at its first call."""
    for network in _networks(model):
        # Dynamic from the first call on: kernels that know a batch size would be compiled again for another, and a
        # resumed run, which meets the sizes in another order, would compute with others.
        network.compile(dynamic=True)


def _networks(module: nn.Module) -> list[nn.Module]:
    """Returns the largest modules that have weights and hold no tables."""
    if isinstance(module, ShardedModule):
        return []
    if any(isinstance(below, ShardedModule) for below in module.modules()):
        return [network for child in module.children() for network in _networks(child)]
    return [module] if any(True for _ in module.parameters()) else []


def _error_of_compiler(device: torch.device) -> str | None:
    """Compiles a function of one line; returns the error, None if it works.

    Only this finds all that can be missing: a compiler, Python's headers, Triton.
    """
    try:
        torch.compile(lambda values: values + 1, dynamic=True)(torch.zeros(2, device=device))
    except TorchDynamoException as error:
        return first_line(error)
    return None


def _say(what: str, context: DistributedContext) -> None:
    if context.is_rank0:
        print(what, flush=True)
