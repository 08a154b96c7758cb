"""Compiles the dense part from the first step on: `train.compile = true`."""

from collections.abc import Callable
from contextlib import suppress

import torch
import torch._functorch.config
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torchrec.distributed.types import ShardedModule

from trainer.config.root import Config
from trainer.core.distributed import DistributedContext, gather_to_all
from trainer.core.errors import first_line
from trainer.extensions.compiled.one_graph import LossWithGradients, why_not_one_graph
from trainer.models.tasks import ModelWithLoss


def compile_dense_part(model: ModelWithLoss, context: DistributedContext, config: Config) -> None:
    """Has the dense part compiled at its first call, or reports why it cannot be.

    The tables stay outside: their kernels are compiled already, and their exchange has to overlap with other work.

    Args:
        model: The sharded model with its loss.
        context: This process among the ranks. All compile, or none.
        config: The configuration.
    """

    def made(why: str | None) -> None:
        if why is None:
            return
        model.with_gradients = None
        if _can_compile(context):
            _say(f"compiling each network of the dense part, as one graph cannot hold it all: {why}", context)
            _compile_networks(model.model)

    if graph := _one_graph(model, context, config, made):
        _say("compiling the dense part, its loss and its gradients as one graph", context)
        model.with_gradients = graph
    elif _can_compile(context):
        _say("compiling each network of the dense part", context)
        # Some weights go back through the networks once for each task, so backward may not give its buffers away.
        torch._functorch.config.donated_buffer = not model.losses.weighting.needs_gradients
        _compile_networks(model.model)


def _one_graph(
    model: ModelWithLoss, context: DistributedContext, config: Config, made: Callable[[str | None], None]
) -> LossWithGradients | None:
    if why_not_one_graph(model, context, config):
        return None
    with suppress(TypeError):  # of a part that cannot be copied
        return LossWithGradients(model, context, config, made)
    return None


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


def _can_compile(context: DistributedContext) -> bool:
    """Returns whether all ranks can compile, and reports what a rank lacks."""
    error = next(filter(None, gather_to_all(_error_of_compiler(context.device), context)), None)
    if error:
        _say(f"train.compile is off, as this machine cannot compile: {error}", context)
    return error is None


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
