"""Combines the losses of several tasks into the loss that training minimizes, by the name of the rule.

Each rule takes the loss of every sample and task, the samples' weights and the batch's scale.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.core.errors import InputError
from trainer.models.losses import total

MOST_EXCHANGES = 1000
TOLERANCE = 1e-9  # relative to the gradient; its Gram matrix is summed in float32


class Weighting(nn.Module):
    """A rule that combines the losses of several tasks.

    Args:
        tasks: Number of the tasks.
        micro_batches: Microbatches of the local batch, whose losses add up.
        device: Device of the rule's parameters.

    Attributes:
        needs_gradients: Whether the rule goes back from each task's loss to the embeddings, and sums over the ranks.
    """

    needs_gradients = False

    def __init__(self, tasks: int, micro_batches: int, device: torch.device) -> None:
        super().__init__()

    def attach(self, embeddings: Callable[[], list[Tensor]]) -> None:
        """Attaches the rule to the cut of a sharded model.

        Args:
            embeddings: Returns this rank's embeddings of the step in progress, `[rows, columns]` each.
        """


class Fixed(Weighting):
    """The plain sum, in which each task has the weight of its configuration."""

    def forward(self, each: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
        """Returns the loss; `each` is `[B, T]`, `weights` `[B]`."""
        return (total(each) * weights).sum() * scale


class Uncertainty(Weighting):
    """Weights by learned variances (Kendall et al., arXiv:1705.07115): the sum of e^-s L + s / 2.

    Attributes:
        log_variances: s, by task.
    """

    def __init__(self, tasks: int, micro_batches: int, device: torch.device) -> None:
        super().__init__(tasks, micro_batches, device)
        self.log_variances = nn.Parameter(torch.zeros(tasks, device=device))
        self._micro_batches = micro_batches

    def forward(self, each: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
        """Returns the loss; `each` is `[B, T]`, `weights` `[B]`."""
        losses = task_losses(each, weights, scale)
        return (losses * (-self.log_variances).exp()).sum() + self.log_variances.sum() / (2 * self._micro_batches)


class Pareto(Weighting):
    """Weights that make the gradient of the pooled embeddings shortest (Sener, Koltun, arXiv:1810.04650).

    No task's loss rises along such a gradient. As in MGDA-UB, it is the gradient of what all tasks share, here the
    pooled embeddings, and not of all weights.
    """

    needs_gradients = True

    def attach(self, embeddings: Callable[[], list[Tensor]]) -> None:
        """Keeps the embeddings, whose gradients `forward` takes."""
        self._embeddings = embeddings

    def forward(self, each: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
        """Returns the loss; `each` is `[B, T]`, `weights` `[B]`."""
        losses = task_losses(each, weights, scale)
        factors = self._factors(losses) if torch.is_grad_enabled() else torch.ones_like(losses)
        return (factors * losses).sum()

    def _factors(self, losses: Tensor) -> Tensor:
        shared = self._embeddings()
        if not shared:
            raise InputError(
                "model.task_weighting is 'pareto', which needs the gradients of embeddings, but the model looks none "
                "up; use 'fixed' or 'uncertainty'"
            )
        gradients = [torch.autograd.grad(loss, shared, retain_graph=True, materialize_grads=True) for loss in losses]
        whole = torch.stack([torch.cat([part.flatten() for part in parts]) for parts in gradients])
        gram = whole @ whole.T
        dist.all_reduce(gram)  # every rank has other samples, which are other parts of the whole gradient
        return shortest(gram.double().cpu()).to(losses)


def task_losses(each: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """Returns the loss of each task, `[T]`."""
    return (each * weights[:, None]).sum(dim=0) * scale


def shortest(gram: Tensor) -> Tensor:
    """Returns the weights, `[T]` with the sum 1, of the shortest weighted mean of vectors.

    Pairwise Frank-Wolfe (Lacoste-Julien, Jaggi, arXiv:1511.05932): moves weight from the worst vector to the best one;
    for two vectors the first move is exact.

    Args:
        gram: Inner products of the vectors, `[T, T]`.
    """
    weights = torch.full((len(gram),), 1 / len(gram), dtype=gram.dtype)
    for _ in range(MOST_EXCHANGES):
        slopes = gram @ weights
        best, worst = slopes.argmin(), slopes.where(weights > 0, -torch.inf).argmax()
        gain = slopes[worst] - slopes[best]
        if gain <= TOLERANCE * gram.diagonal().amax():
            break
        curvature = gram[best, best] - 2 * gram[best, worst] + gram[worst, worst]
        moved = torch.minimum(weights[worst], gain / curvature)
        weights[best] += moved
        weights[worst] -= moved
    return weights


WEIGHTINGS: dict[str, type[Weighting]] = {"fixed": Fixed, "uncertainty": Uncertainty, "pareto": Pareto}
