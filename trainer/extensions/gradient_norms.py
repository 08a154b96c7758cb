"""Norms of the gradients of dense weights by pattern, at every report."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch

from trainer.core.errors import InputError, some_of
from trainer.training.watchers import RunView, Watcher


class GradientNorms(Watcher):
    """Computes the 2-norm of the gradients of the global batch, for the weights of each pattern together.

    Needs no collective, because every rank has the same gradients of dense weights.
    """

    def begin(self, run: RunView, step: int, last_step: int) -> None:
        """Refuses patterns that match nothing.

        Raises:
            InputError: There is one.
        """
        names = run.gradients()
        for pattern in run.config.report.gradient_norms:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InputError(
                    f"report.gradient_norms has '{pattern}', which matches no dense weight that trains; there are "
                    f"{some_of(names) or 'none'}"
                )

    def numbers(self, run: RunView, step: int) -> Mapping[str, float]:
        """Returns the norms by pattern; after clipping, if that is on."""
        gradients = {name: one for name, one in run.gradients().items() if one is not None}
        found = {
            f"gradient_norm/{pattern}": torch.nn.utils.get_total_norm(
                [one for name, one in gradients.items() if fnmatchcase(name, pattern)]
            )
            for pattern in run.config.report.gradient_norms
        }
        return {name: norm.item() for name, norm in found.items()}
