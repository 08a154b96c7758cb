"""Compiles the dense part of a sharded model by torch.compile."""

import torch
from torch import nn
from torch._dynamo.exc import TorchDynamoException
from torchrec.distributed.types import ShardedModule

from trainer.core.distributed import DistributedContext, gather_to_all


def compile_dense_part(model: nn.Module, context: DistributedContext) -> None:
    """Lets every network beside the tables be compiled at its first call, or says why none can be.

    The tables stay outside: their kernels are compiled already, and their exchange has to overlap with other work.

    Args:
        model: The sharded model, without its loss.
        context: This process among the ranks. All compile, or none.
    """
    errors = gather_to_all(_error_of_compiler(context.device), context)
    error = next(filter(None, errors), None)
    if context.is_rank0:
        what = f"train.compile is off, as this machine cannot compile: {error}" if error else "compiling the dense part"
        print(what, flush=True)
    if not error:
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
        return str(error).strip().splitlines()[0]
    return None
