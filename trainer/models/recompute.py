"""Parts of a model that are computed again in backward, in place of keeping what they computed: `train.recompute`."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trainer.models.step_samples import samples_of

Contexts = Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]


class Recomputable(nn.Module):
    """A part that keeps its inputs alone for backward, once `recompute_parts` has turned that on.

    It has to compute the same twice: no batch statistics, and no random numbers but those of the step's samples.
    """

    contexts: Contexts | None = None

    def __call__(self, *inputs: Any) -> Any:
        """Computes the part."""
        if self.contexts is None or not torch.is_grad_enabled():
            return super().__call__(*inputs)
        return _recomputed(super().__call__, self.contexts, *inputs)


# Graphs take no contexts.
@torch.compiler.disable
def _recomputed(part: Callable[..., Any], contexts: Contexts, *inputs: Any) -> Any:
    # Masks of dropout follow from the samples, so that there is no state of a generator to keep.
    return checkpoint(part, *inputs, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)


def recompute_parts(model: nn.Module) -> bool:
    """Has the largest parts of a model computed again in backward, and returns whether there are any.

    Backward needs a whole part again at once. So a model that is one part saves nothing by it, and the parts of that
    part are computed again in its place.
    """
    parts = _largest(model)
    if len(parts) == 1:
        parts = [inner for child in parts[0].children() for inner in _largest(child)] or parts
    for part in parts:
        part.contexts = samples_of(model).now_and_later
    return bool(parts)


def is_recomputed(model: nn.Module) -> bool:
    """Returns whether parts of a model are computed again in backward."""
    return any(isinstance(module, Recomputable) and module.contexts for module in model.modules())


def _largest(module: nn.Module) -> list[Recomputable]:
    if isinstance(module, Recomputable):
        return [module]
    return [part for child in module.children() for part in _largest(child)]
