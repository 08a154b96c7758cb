"""The dense part of a model with its loss and its gradients, compiled as one graph."""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch._dynamo.types import GuardFilterEntry
from torch.func import functional_call, grad_and_value
from torchrec.distributed.types import ShardedModule
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from trainer.batches.batch import Batch
from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, gather_to_all
from trainer.core.errors import first_line
from trainer.extensions.compiled import graph_file
from trainer.models.base import BatchOutputs, Predictions
from trainer.models.normalization import BatchNorm
from trainer.models.recompute import is_recomputed
from trainer.models.step_samples import samples_of
from trainer.models.tasks import ModelWithLoss
from trainer.plan.sharding import PooledTables

REPLAYED_BYTES = 256 * 2**20
"""Embeddings of a batch up to which a GPU replays its kernels, which begins with a copy of them.

On an H200, a DLRM took 2.4 ms in place of 4.0 with 104 MiB of them, as launching kernels one by one took longer than
they ran; with 832 MiB, 12.2 in place of 11.7, and 1.4 GiB more memory.
"""
DENSE_FIELDS = [field.name for field in fields(Batch) if field.name != "sparse"]
_NO_IDS = KeyedJaggedTensor([], torch.empty(0), lengths=torch.empty(0, dtype=torch.int32))
T = TypeVar("T")
Graph = Callable[[Tensor, Batch], tuple[list[Tensor], Tensor, Predictions]]
"""From embeddings and the batch: the gradients of weights and embeddings, the loss and the predictions."""


def why_not_one_graph(model: ModelWithLoss, context: DistributedContext, config: Config) -> str | None:
    """Returns why one graph cannot be the dense part with its loss and gradients; None if it may be."""
    tables = [module for module in model.modules() if isinstance(module, ShardedModule)]
    if context.device.type != "cpu" and context.world_size > 1:
        return "several GPUs average the gradients of some layers while backward computes those of others"
    if config.train.scales_loss:
        return "the loss is scaled"
    if not model.losses.is_function:
        return "the loss looks at values, or at samples of other ranks"
    if len(tables) != 1 or not isinstance(tables[0], PooledTables):
        return "it is not behind one collection of pooled tables"
    if any(isinstance(module, BatchNorm) for module in model.modules()):
        return "batch normalization changes running means"
    if is_recomputed(model):
        return "hidden layers are computed again in backward"
    return None


class LossWithGradients:
    """The dense part with its loss and its gradients, compiled as one graph at the first call.

    If only networks are compiled, Python still calls the loss, and all that autograd puts between forward and backward:
    DeepFM on MovieLens in batches of 1,024 took 2.0 ms a step so, and 1.5 as one graph.

    Args:
        model: The sharded model with its loss, for which `why_not_one_graph` finds nothing.
        context: This process among the ranks.
        config: The configuration.
        made: Called on all ranks in the first call, with None once there is a graph, or with why there cannot be one.

    Raises:
        TypeError: A part of the user's own cannot be copied, such as a lock.
    """

    def __init__(
        self, model: ModelWithLoss, context: DistributedContext, config: Config, made: Callable[[str | None], None]
    ) -> None:
        self._context, self._made = context, made
        self._tables = next(module for module in model.modules() if isinstance(module, PooledTables))
        self._function = _LossAndGradients(model, self._tables)
        self._costs = graph_file.Costs(config)
        # Whether a GPU records the kernels at the first calls and replays them from then on. What they write is then
        # where it was at the call before.
        self._is_replayed = (
            context.device.type == "cuda"
            and config.train.micro_batches == 1  # or gradients are added up, and those of the first slice must stay
            and config.data.global_batch_size * sum(self._tables.dimensions) * torch.float32.itemsize <= REPLAYED_BYTES
        )
        self._graph: Graph | None = None

    def __call__(self, batch: Batch) -> tuple[Tensor, BatchOutputs]:
        """Computes the loss of the local batch and the model's outputs, and already the gradients for backward."""
        embeddings = self._tables(batch.sparse).values()
        if self._graph is None:
            # Random numbers that are drawn to make the graph are those of the step, which draws them once more.
            devices = [self._context.device] if self._context.device.type == "cuda" else []
            with torch.random.fork_rng(devices):
                why = self._make_graph(embeddings, batch)
            self._made(why)
        if self._graph is None or len(batch.labels) < graph_file.LEAST_SIZE:
            return self._function.eager(embeddings, batch)
        if self._is_replayed:  # or the loss of the step before, which is still there, would keep its memory
            torch.compiler.cudagraph_mark_step_begin()
        with torch.no_grad():
            gradients, loss, predictions = self._graph(embeddings, batch)
        outputs = BatchOutputs(loss, predictions, batch.labels, batch.weights, batch.groups)
        return _GradientsKnown.apply(loss, gradients, *self._function.weights, embeddings), outputs

    def _make_graph(self, embeddings: Tensor, batch: Batch) -> str | None:
        """Makes the graph on all ranks, or on none; returns why it cannot be made."""
        is_cpu, (rank, local_rank) = self._context.device.type == "cpu", (self._context.rank, self._context.local_rank)
        # The first rank of a host makes the file for all.
        code, why = _try(lambda: self._machine_code(embeddings, batch) if is_cpu and local_rank == 0 else None)
        codes, errors = zip(*gather_to_all((code, why), self._context), strict=True)
        if why := next(filter(None, errors), None):
            return why

        def make() -> Graph:
            code = codes[rank - local_rank]
            graph = self._function.of_code(*code) if code else self._function.compiled(self._is_replayed)
            with torch.no_grad():
                (*of_weights, _), _, _ = graph(embeddings, batch)
            # A weight without a gradient may be one that the copy of the model cannot see, such as that of a lambda, or
            # one that no loss depends on, which eager torch would leave alone. A trace finds both.
            if not is_cpu and not all(gradient.any() for gradient in of_weights):
                raise ValueError("a weight has no gradient")
            return graph

        graph, why = _try(make)
        why = next(filter(None, gather_to_all(why, self._context)), None)
        self._graph = None if why else graph
        return why

    def _machine_code(self, embeddings: Tensor, batch: Batch) -> tuple[Path, list[str]]:
        """Returns a file with the machine code for this host, and the names of the predictions."""
        started = time.monotonic()
        function = self._function
        trace = graph_file.Trace(function.take, function.fixed, function.of_batch(embeddings, batch), len(batch.labels))
        path = graph_file.kept(trace.key())
        if path is None or _try(lambda: graph_file.load(path))[1]:
            path = trace.compile()
            try:
                path = graph_file.keep(path, trace.key())
                self._costs.note(path, time.monotonic() - started)
            except OSError as error:
                print(
                    f"the compiled dense part cannot be kept in {graph_file.folder()}, so that the next start compiles "
                    f"it again: {first_line(error)}",
                    flush=True,
                )
        return path, function.predicted


def _try(make: Callable[[], T]) -> tuple[T | None, str | None]:
    """Returns what `make` returns, or the first line of its error."""
    try:
        return make(), None
    # The user's own code may do what no graph can, and the compiler may lack anything; torch raises errors of many
    # types for these. An error that has nothing to do with it comes again in the eager step.
    except Exception as error:
        return None, first_line(error)


class _LossAndGradients:
    """The dense part with its loss, as functions of embeddings and a batch that return gradients, loss and predictions.

    Args:
        model: The sharded model with its loss.
        tables: Its only tables.

    Attributes:
        weights: The weights that train.
        fixed: All weights and buffers: the first inputs of `take`.
        predicted: The names of the predictions, once `take` was called.
    """

    def __init__(self, model: ModelWithLoss, tables: PooledTables) -> None:
        # The same weights, and embeddings in place of the tables.
        same = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self._dense_part = deepcopy(model, same | {id(tables): _LookedUp(tables)})
        self._samples = samples_of(self._dense_part)
        trained = {name: weight for name, weight in self._dense_part.named_parameters() if weight.requires_grad}
        every = dict(self._dense_part.named_parameters()) | dict(self._dense_part.named_buffers())
        self._others = {name: value for name, value in every.items() if name not in trained}
        self._names, self.weights = [*trained], [*trained.values()]
        self.fixed = [*self.weights, *self._others.values()]
        self.predicted: list[str] = []

    def of_batch(self, embeddings: Tensor, batch: Batch) -> list[Tensor]:
        """Returns the other inputs of `take`, from a batch and its embeddings."""
        return [embeddings, self._samples.keys, *(getattr(batch, name) for name in DENSE_FIELDS)]

    def eager(self, embeddings: Any, batch: Batch) -> tuple[Tensor, BatchOutputs]:
        """Computes the loss and the outputs without a graph.

        The embeddings are not looked up again, as a pipeline has the ids of a batch for one lookup.
        """
        return self._dense_part(replace(batch, sparse=embeddings))

    def take(self, *inputs: Tensor) -> list[Tensor]:
        """Returns the gradients of weights and embeddings, the loss, and the predictions."""
        trained, others = len(self._names), len(self._others)
        # Not by torch.func as below, whose tensors know dropout only where sizes have values.
        weights = [weight.detach().requires_grad_() for weight in inputs[:trained]]
        embeddings, keys, *of_batch = inputs[trained + others :]
        embeddings = embeddings.detach().requires_grad_()
        batch = Batch(sparse=_NO_IDS, **dict(zip(DENSE_FIELDS, of_batch, strict=True)))
        tensors = dict(zip((*self._names, *self._others), (*weights, *inputs[trained:][:others]), strict=True))
        before, self._samples.keys = self._samples.keys, keys
        try:
            with torch.enable_grad():
                loss, predictions = self._loss(tensors, embeddings, batch)
                gradients = torch.autograd.grad(loss, [*weights, embeddings])
        finally:
            self._samples.keys = before
        self.predicted = [*predictions]
        return [*gradients, loss.detach(), *predictions.values()]

    def _loss(self, tensors: dict[str, Tensor], embeddings: Any, batch: Batch) -> tuple[Tensor, Predictions]:
        loss, outputs = functional_call(self._dense_part, tensors, (replace(batch, sparse=embeddings),))
        return loss, outputs.predictions

    def of_code(self, path: Path, predicted: list[str]) -> Graph:
        """Returns the graph whose machine code is in a file."""
        run, last = graph_file.load(path), len(self.weights) + 1

        def graph(embeddings: Tensor, batch: Batch) -> tuple[list[Tensor], Tensor, Predictions]:
            found = run([*self.fixed, *self.of_batch(embeddings, batch)])
            return found[:last], found[last], dict(zip(predicted, found[last + 1 :], strict=True))

        return graph

    def compiled(self, is_replayed: bool) -> Graph:
        """Returns the graph that torch.compile makes, as AOTInductor has no CUDA graphs."""
        if is_replayed:  # or each replay would begin with a copy of the weights
            for weight in self.weights:
                torch._dynamo.mark_static_address(weight)

        def loss_of(weights: list[Tensor], embeddings: Any, batch: Batch) -> tuple[Tensor, Predictions]:
            return self._loss(dict(zip(self._names, weights, strict=True)), embeddings, batch)

        compiled = torch.compile(  # pyrefly: ignore[no-matching-overload]
            grad_and_value(loss_of, argnums=(0, 1), has_aux=True),
            fullgraph=True,
            # Dynamic from the first call on: kernels that know a batch size would be compiled again for another.
            dynamic=True,
            options={"guard_filter_fn": _is_of_inputs, "triton.cudagraphs": is_replayed},
            isolate_recompiles=True,  # with these guards alone, another model could get this one's graph
        )

        def graph(embeddings: Tensor, batch: Batch) -> tuple[list[Tensor], Tensor, Predictions]:
            (of_weights, of_embeddings), (loss, predictions) = compiled(self.weights, embeddings, batch)
            return [*of_weights, of_embeddings], loss, predictions

        return graph


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
