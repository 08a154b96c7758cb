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
        # Masks of dropout follow from the samples, so that there is no state of a generator to keep.
        options = {"use_reentrant": False, "preserve_rng_state": False, "context_fn": self.contexts}
        return checkpoint(super().__call__, *inputs, **options)


def recompute_parts(model: nn.Module) -> bool:
    """Has the parts of a model computed again in backward, and returns whether there are any."""
    parts = [module for module in model.modules() if isinstance(module, Recomputable)]
    for part in parts:
        part.contexts = samples_of(model).now_and_later
    return bool(parts)
